"""Limits the rates of tool calls. Each process counts its own calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fnmatch import fnmatchcase

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter


class ToolRates:
    """Counts calls in sliding windows, separately for each tool.

    Args:
        rates: Rates such as "60/minute" by tool name, or by a pattern in which * stands for any text. The first match
            applies.
    """

    def __init__(self, rates: Mapping[str, str]) -> None:
        self._rates = {pattern: parse(rate) for pattern, rate in rates.items()}
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def take(self, tool: str) -> str:
        """Count a call. Returns the reason for refusal if the call exceeds the rate, or an empty string otherwise."""
        rate = next((rate for pattern, rate in self._rates.items() if fnmatchcase(tool, pattern)), None)
        if rate is None or await self._limiter.hit(rate, tool):
            return ""
        window = await self._limiter.get_window_stats(rate, tool)
        return f"it exceeds its rate of {rate}: try again in {max(0.0, window.reset_time - time.time()):.1f} s"
