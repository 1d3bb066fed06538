"""Which owners are dead: those whose beats do not move. Needs no clock that they share."""

from __future__ import annotations

from collections.abc import Mapping


class Leases:
    """What one owner has seen of the others.

    Invariant: an owner is dead once its beat has stayed the same for the lease, by the clock of the one who looks.
    """

    def __init__(self, me: str, lease_s: float) -> None:
        self._me = me
        self._lease_s = lease_s
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, beats: Mapping[str, int], now_s: float) -> list[str]:
        """Take the beats at a time and return the owners that are dead by now."""
        self._seen = {
            owner: self._seen[owner] if owner in self._seen and self._seen[owner][0] == beat else (beat, now_s)
            for owner, beat in beats.items()
            if owner != self._me
        }
        return [owner for owner, (_, since_s) in self._seen.items() if now_s - since_s >= self._lease_s]
