"""Detects dead owners by unchanged heartbeat counts, without a common clock."""

from __future__ import annotations

from collections.abc import Mapping


class Leases:
    """The heartbeats of other owners, as seen by one owner.

    Invariant: an owner is dead if its heartbeat count has not changed for the duration of the lease, by the observer's
    clock. After a long gap the observer starts over, because owners cannot send heartbeats while the database does not
    answer.
    """

    def __init__(self, me: str, lease_s: float, longest_gap_s: float) -> None:
        self._me = me
        self._lease_s = lease_s
        self._longest_gap_s = longest_gap_s
        self._looked_s = float("-inf")
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, beats: Mapping[str, int], now_s: float) -> dict[str, int]:
        """Record the current heartbeat counts, and return the dead owners with their last counts."""
        if now_s - self._looked_s > self._longest_gap_s:
            self._seen = {}
        self._looked_s = now_s
        self._seen = {owner: self._moved(owner, beat, now_s) for owner, beat in beats.items() if owner != self._me}
        return {owner: beat for owner, (beat, since_s) in self._seen.items() if now_s - since_s >= self._lease_s}

    def _moved(self, owner: str, beat: int, now_s: float) -> tuple[int, float]:
        """Return an owner's heartbeat count and the time of its last change."""
        last_beat, since_s = self._seen.get(owner, (beat, now_s))
        if last_beat != beat:
            since_s = now_s
        return beat, since_s
