"""Lets a bounded number of calls run at once; the others wait in turn, each tenant in its own line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagantic_common.domain.errors import ErrorCode, Overloaded
from pagantic_common.workers.fair_queue import FairQueue

RETRY_AFTER_S = 1.0


class Turns:
    """The places of one engine. Used from one event loop.

    Args:
        most: Most calls at once.
        capacity: Most calls that wait; a tenant keeps its share of a full queue.
    """

    def __init__(self, most: int, capacity: int) -> None:
        self.most = most
        self.capacity = capacity
        self.running = 0
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue(capacity)

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return len(self._waiting)

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """Hold a place inside the block; raises Overloaded (INFERENCE_OVERLOADED) when too many calls wait."""
        if self.running < self.most:
            self.running += 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused = self._waiting.add(tenant, place)
        if refused is not None:
            refused.set_exception(self._overloaded())
        try:
            await place
        except asyncio.CancelledError:
            self._waiting.remove(tenant, place)
            if place.done() and not place.cancelled() and place.exception() is None:
                self._pass_on()  # the place came together with the cancellation
            raise

    def _pass_on(self) -> None:
        """Give a place that is free now to the next call that waits."""
        while (place := self._waiting.take()) is not None:
            if not place.done():
                place.set_result(None)
                return
        self.running -= 1

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"{self.capacity} requests wait for the engine already, which is the limit",
            code=ErrorCode.INFERENCE_OVERLOADED,
            retry_after_s=RETRY_AFTER_S,
        )
