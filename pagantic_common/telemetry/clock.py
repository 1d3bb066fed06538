"""The machine's clock."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Implements `pagantic_common.domain.clock.Clock` with the machine's clock."""

    monotonic_s = staticmethod(time.monotonic)  # seconds that never decrease

    def now(self) -> datetime:
        """Wall time, UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
