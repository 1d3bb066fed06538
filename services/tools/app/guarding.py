"""Refuses calls of a tool that is called too often, or that gave no answer too often in a row."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from pagantic_common.domain.calls.breaker import THRESHOLD, Breaker
from pagantic_common.domain.clock import Clock
from services.tools.ports import Rates

FIRST_OPEN_S, MAX_OPEN_S, PROBE_S = 5.0, 60.0, 60.0


class CallGuard:
    """The rates of tools, None for no limits, and a circuit breaker for each tool.

    A failure that a tool reports itself counts as an answer. A call that its caller cancelled says nothing about the
    tool.
    """

    def __init__(self, rates: Rates | None, clock: Clock) -> None:
        self._rates = rates
        self._clock = clock
        self._breakers: dict[str, Breaker] = defaultdict(partial(Breaker, FIRST_OPEN_S, MAX_OPEN_S, PROBE_S))

    async def refusal_of(self, tool: str) -> str:
        """Return why a call is refused now; empty for a permitted call, which is then counted."""
        if self._rates is not None and (refusal := await self._rates.take(tool)):
            return refusal
        wait_s = self._breakers[tool].admit(self._clock.monotonic_s())
        if wait_s > 0:
            return f"{THRESHOLD} consecutive calls got no answer: the next attempt is in {wait_s:.1f} s"
        return ""

    def note_answer(self, tool: str) -> None:
        """Note that a tool answered."""
        self._breakers[tool].note_answer()

    def note_silence(self, tool: str) -> None:
        """Note that a tool could not be reached, or was too slow."""
        self._breakers[tool].note_failure(self._clock.monotonic_s())
