"""Refuses calls of a tool that is called too often, or that has failed too often in a row."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from pagantic_common.domain.calls.breaker import THRESHOLD, Breaker
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Failure
from services.tools.ports import Rates

FIRST_OPEN_S, MAX_OPEN_S = 5.0, 60.0
# A tool that answers in its own words works, whatever it says.
_LOST = frozenset({ErrorCode.TOOL_TIMEOUT, ErrorCode.TOOL_UNAVAILABLE})


class CallGuard:
    """The rates of tools, None for no limits, and a circuit breaker for each."""

    def __init__(self, rates: Rates | None, clock: Clock) -> None:
        self._rates = rates
        self._clock = clock
        self._breakers: dict[str, Breaker] = defaultdict(partial(Breaker, FIRST_OPEN_S, MAX_OPEN_S))

    async def refusal_of(self, tool: str) -> str:
        """Return why a call may not be made now; empty when it may, which is then counted."""
        wait_s = self._breakers[tool].admit(self._clock.monotonic_s())
        if wait_s > 0:
            return f"{THRESHOLD} calls in a row gave no answer: it is tried again in {wait_s:.1f} s"
        if self._rates is None:
            return ""
        return await self._rates.take(tool)

    def note(self, tool: str, failure: Failure | None) -> None:
        """Note the end of an attempt."""
        if failure is not None and failure.code in _LOST:
            self._breakers[tool].note_failure(self._clock.monotonic_s())
        else:
            self._breakers[tool].note_answer()
