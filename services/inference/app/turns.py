"""Who may use the engine next: one at a time, higher priority first, first come first served, with a bound."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagantic_common.domain.errors import ErrorCode, Overloaded

RETRY_AFTER_S = 1.0


class Turns:
    """A bounded priority queue for one engine, used from one event loop."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.is_busy = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def take(self, priority: int) -> AsyncIterator[None]:
        """Hold the engine inside the block. Raises Overloaded (INFERENCE_OVERLOADED) when too many wait already."""
        if self.is_busy or self._waiting:
            await self._wait(priority)
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False
            self._wake_next()

    def check_capacity(self) -> None:
        """Raise Overloaded when one more would not be let in to wait."""
        if self.is_busy and len(self._waiting) >= self.capacity:
            raise Overloaded(
                f"{len(self._waiting)} requests wait already, the limit is {self.capacity}",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )

    async def _wait(self, priority: int) -> None:
        self.check_capacity()
        turn = asyncio.get_running_loop().create_future()
        entry = (-priority, next(self._arrivals), turn)
        heapq.heappush(self._waiting, entry)
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            elif not turn.cancelled():
                self._wake_next()  # the turn was given and not taken: pass it on
            raise

    def _wake_next(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self.is_busy = True  # held for the one that wakes, so that no newcomer slips in before it
                turn.set_result(None)
                return
        self.is_busy = False
