"""A point in time by which work must be done."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A monotonic time in seconds. Infinity means that there is no deadline."""

    at_s: float = math.inf

    @classmethod
    def after(cls, now_s: float, timeout_s: float | None) -> Deadline:
        """Return the deadline `timeout_s` seconds after `now_s`. A timeout of None sets no deadline."""
        if timeout_s is None:
            return cls()
        return cls(now_s + timeout_s)

    def remaining_s(self, now_s: float) -> float | None:
        """Return the seconds left, at least 0, or None if there is no deadline."""
        if math.isinf(self.at_s):
            return None
        return max(0.0, self.at_s - now_s)

    def limit(self, timeout_s: float, now_s: float) -> float:
        """Return the shorter of `timeout_s` and the remaining seconds, at least 0."""
        return min(timeout_s, max(0.0, self.at_s - now_s))

    def has_passed(self, now_s: float) -> bool:
        """Return whether no time is left."""
        return now_s >= self.at_s
