"""Time as a dependency that callers can replace."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the wall time in UTC, for timestamps."""

    def monotonic_s(self) -> float:
        """Return a time in seconds that never decreases, for durations and deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Wait for the given number of seconds."""
