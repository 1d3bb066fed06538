"""A cache of results of costly work, by key, limited in bytes and independent of the work itself."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pagantic_common.domain.errors import Failure, InvalidRequest

REFUSAL_S = 60.0
MAX_REFUSALS = 1024

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Running(Generic[ResultT]):
    task: asyncio.Task[ResultT]
    callers: int = 0


@dataclass(frozen=True, slots=True)
class _Refusal:
    failure: Failure
    until_s: float


class WorkCache(Generic[ResultT]):
    """Runs work once for simultaneous calls with equal keys, and keeps the result.

    Not thread-safe: use it from a single event loop. A refusal (InvalidRequest) is kept for a minute, so that hostile
    work runs at most once a minute.

    Args:
        max_bytes: Maximum total size of the kept results, in bytes. The least recently used results are dropped first.
        size_of: Returns the size of a result, in bytes.
        monotonic_s: Returns the monotonic time in seconds.
    """

    def __init__(self, *, max_bytes: int, size_of: Callable[[ResultT], int], monotonic_s: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._monotonic_s = monotonic_s
        self._done: OrderedDict[str, ResultT] = OrderedDict()
        self._refused: OrderedDict[str, _Refusal] = OrderedDict()
        self._running: dict[str, _Running[ResultT]] = {}
        self.used_bytes = 0

    async def get(self, key: str, work: Callable[[], Awaitable[ResultT]]) -> tuple[ResultT, bool]:
        """Return the result for a key, and whether it came from the cache. Raises the errors of `work`."""
        if key in self._done:
            self._done.move_to_end(key)
            return self._done[key], True
        self._raise_refusal(key)
        running = self._running.get(key)
        if running is None:
            running = _Running(asyncio.ensure_future(_as_coroutine(work)))
            self._running[key] = running
            running.task.add_done_callback(lambda done: self._finish(key, done))
        running.callers += 1
        try:
            return await asyncio.shield(running.task), False
        finally:
            # Work continues while it has a caller. When its last caller leaves, it is cancelled and removed, so that a
            # later caller starts new work instead of waiting for cancelled work.
            running.callers -= 1
            if not running.callers:
                self._forget(key, running.task)
                running.task.cancel()

    def drop(self, key: str, result: ResultT) -> None:
        """Drop this result of a key. A newer result stays."""
        if self._done.get(key) is result:
            self.used_bytes -= self._size_of(self._done.pop(key))

    def _raise_refusal(self, key: str) -> None:
        refusal = self._refused.get(key)
        if refusal is None:
            return
        if self._monotonic_s() < refusal.until_s:
            raise InvalidRequest(failure=refusal.failure)
        del self._refused[key]

    def _forget(self, key: str, task: asyncio.Task[ResultT]) -> None:
        if key in self._running and self._running[key].task is task:
            del self._running[key]

    def _finish(self, key: str, task: asyncio.Task[ResultT]) -> None:
        self._forget(key, task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._keep(key, task.result())
        elif isinstance(error, InvalidRequest):
            self._refused[key] = _Refusal(error.failure, self._monotonic_s() + REFUSAL_S)
            if len(self._refused) > MAX_REFUSALS:
                self._refused.popitem(last=False)

    def _keep(self, key: str, result: ResultT) -> None:
        if key in self._done:
            self.used_bytes -= self._size_of(self._done.pop(key))
        size = self._size_of(result)
        if size > self._max_bytes:  # The result would displace all other results and still not fit.
            return
        self._done[key] = result
        self.used_bytes += size
        while self.used_bytes > self._max_bytes:
            _, oldest = self._done.popitem(last=False)
            self.used_bytes -= self._size_of(oldest)


async def _as_coroutine(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    return await work()
