"""Places for concurrent work. Owners share the places, and take turns when all places are taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from pagantic_common.domain.errors import ErrorCode, Overloaded
from pagantic_common.workers.fair_queue import FairQueue

RETRY_AFTER_S = 1.0


class Place:
    """A place that its holder has taken. It is free once its block and all its futures have ended."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._holders = 1  # the block, and each future that is not done

    def keep_until(self, future: asyncio.Future[Any] | Future[Any]) -> None:
        """Keep the place until the future is also done, for example the future of a thread that outlives its caller.

        If the future fails after its caller has left, the failure is not reported as unnoticed.
        """
        future.add_done_callback(_notice_failure)
        if not self._holders:  # The place has already been passed on.
            return
        loop = asyncio.get_running_loop()
        self._holders += 1

        def end(_done: object) -> None:
            with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
                loop.call_soon_threadsafe(self.release)

        future.add_done_callback(end)

    def release(self) -> None:
        """End the hold of the block or of a future."""
        self._holders -= 1
        if not self._holders:
            self._free()


_current: ContextVar[Place | None] = ContextVar("place", default=None)


def keep_place_until(future: asyncio.Future[Any] | Future[Any]) -> None:
    """Keep the place that the current work holds, if any, until the future is also done."""
    place = _current.get()
    if place is None:
        future.add_done_callback(_notice_failure)
    else:
        place.keep_until(future)


def _notice_failure(done: asyncio.Future[Any] | Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    owner: str | None
    came: asyncio.Future[None]


class FairPlaces:
    """A number of places, and a queue for work that waits for a place. Use it from a single event loop.

    Owners take turns in the queue. The owner None, the single user of a local system, may take every place.

    Args:
        count: The number of places.
        of_owner: Maximum number of places of one owner, or 0 if one owner may take every place.
        waiting: Maximum number of pieces of work that wait. Each owner keeps its share of a full queue.
        resource: The thing that has these places, for error messages.
        code: The error code of work that the full queue refuses.
    """

    def __init__(
        self,
        count: int,
        *,
        of_owner: int = 0,
        waiting: int = 256,
        resource: str = "a place",
        code: ErrorCode | None = None,
    ) -> None:
        self.count = count
        self.max_waiting = waiting
        self._of_owner = of_owner or count
        self._resource = resource
        self._code = code
        self._taken: Counter[str | None] = Counter()
        self._queue: FairQueue[_Turn] = FairQueue(waiting)

    @property
    def taken(self) -> int:
        """The number of taken places."""
        return self._taken.total()

    @property
    def waiting(self) -> int:
        """The number of pieces of work that wait for a place."""
        return len(self._queue)

    @asynccontextmanager
    async def place(self, owner: str | None) -> AsyncIterator[Place]:
        """Hold a place inside the block. Raises Overloaded if the queue is full."""
        if self.taken < self.count and self._has_room(owner):
            self._taken[owner] += 1
        else:
            await self._wait(owner)
        place = Place(partial(self._pass_on, owner))
        token = _current.set(place)
        try:
            yield place
        finally:
            with contextlib.suppress(ValueError):  # The block ends in another context, where the token is not valid.
                _current.reset(token)
            place.release()

    def _has_room(self, owner: str | None) -> bool:
        return owner is None or self._taken[owner] < self._of_owner

    async def _wait(self, owner: str | None) -> None:
        turn = _Turn(owner, asyncio.get_running_loop().create_future())
        refused = self._queue.add(owner, turn)
        if refused is not None and not refused.came.done():  # The caller may have left but still be in the queue.
            refused.came.set_exception(self._full())
        try:
            await turn.came
        except asyncio.CancelledError:
            self._queue.remove(owner, turn)
            # The turn may have come together with the cancellation.
            if turn.came.done() and not turn.came.cancelled() and turn.came.exception() is None:
                self._pass_on(owner)
            raise

    def _pass_on(self, owner: str | None) -> None:
        """Free a place of the owner, and give it to the next piece of work whose owner has room."""
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        while (turn := self._queue.take(self._has_room)) is not None:
            if not turn.came.done():
                self._taken[turn.owner] += 1
                turn.came.set_result(None)
                return

    def _full(self) -> Overloaded:
        return Overloaded(
            f"{self.max_waiting} requests wait for {self._resource} already, which is the limit",
            code=self._code,
            retry_after_s=RETRY_AFTER_S,
        )
