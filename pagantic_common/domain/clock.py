"""Time as an argument."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Wall time, UTC, for timestamps."""

    def monotonic_s(self) -> float:
        """Seconds that never decrease, for durations and deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
