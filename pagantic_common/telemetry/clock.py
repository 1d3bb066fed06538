"""The machine's clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """A Clock that reads the machine's clock (`pagantic_common.domain.clock.Clock`)."""

    monotonic_s = staticmethod(time.monotonic)  # Seconds that never decrease.

    def now(self) -> datetime:
        """Return the wall time in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait for the given number of seconds."""
        await asyncio.sleep(seconds)
