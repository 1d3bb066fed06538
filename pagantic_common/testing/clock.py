"""A clock that only tests advance."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta


class FakeClock:
    """A Clock for tests (`pagantic_common.domain.clock.Clock`). Each reading advances it by `step_s`."""

    def __init__(self, *, step_s: float = 0.0, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._step_s = step_s

    def now(self) -> datetime:
        """Return the simulated wall time."""
        return self._start + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        """Return the number of seconds since the clock was created."""
        self._elapsed_s += self._step_s
        return self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._elapsed_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Advance the clock, and let other tasks run."""
        self.advance(seconds)
        await asyncio.sleep(0)
