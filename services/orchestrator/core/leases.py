"""Which owners are dead: those whose beats do not move. Needs no clock that they share."""

from __future__ import annotations

from collections.abc import Mapping


class Leases:
    """What one owner has seen of the others.

    Invariant: an owner is dead once its beat has stayed the same for the lease, by the clock of the one who looks. Who
    has not looked for a while, as when the database did not answer, begins anew: the others could not beat either.
    """

    def __init__(self, me: str, lease_s: float, longest_gap_s: float) -> None:
        self._me = me
        self._lease_s = lease_s
        self._longest_gap_s = longest_gap_s
        self._looked_s = float("-inf")
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, beats: Mapping[str, int], now_s: float) -> dict[str, int]:
        """Take the beats at a time and return the owners that are dead by now, with their last beats."""
        if now_s - self._looked_s > self._longest_gap_s:
            self._seen = {}
        self._looked_s = now_s
        self._seen = {
            owner: self._seen[owner] if owner in self._seen and self._seen[owner][0] == beat else (beat, now_s)
            for owner, beat in beats.items()
            if owner != self._me
        }
        return {owner: beat for owner, (beat, since_s) in self._seen.items() if now_s - since_s >= self._lease_s}
