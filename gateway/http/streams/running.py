"""Runs work for a client, and stops the work if the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive

from pagantic.orchestrator.v1 import event_pb2

ResultT = TypeVar("ResultT")
Answer = Response | AsyncGenerator[str, None]
_Read = tuple[int, event_pb2.ExecutionEvent | Exception | None]  # None marks the end of the stream at this position.
WAITING_EVENTS = 64
WAITING_BYTES = 64 * 1024
RUN_AT_ONCE = 8
QUIET_S = 15.0
QUIET = ": the answer is still being made\n\n"


async def until_left(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of the work. If the client disconnects first, cancel the work and raise ClientDisconnect."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(working, leaving, return_exceptions=True)
        # An error's traceback holds this frame, whose tasks would keep the answer in memory until a garbage collection.
        del working, leaving, task


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_all(works: Sequence[Coroutine[Any, Any, ResultT]], *, at_once: int = RUN_AT_ONCE) -> list[ResultT]:
    """Run coroutines, at most `at_once` concurrently, and return their results. The first error stops the others."""
    places = asyncio.Semaphore(at_once)

    async def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
        async with places:
            return await work

    running = [asyncio.create_task(run(work)) for work in works]
    try:
        return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for work in works:
            work.close()  # A coroutine without a slot was never awaited, so it must be closed.


class _WaitingEvents(asyncio.Queue[_Read]):
    """A queue that is also full if its events have WAITING_BYTES, because a slow client keeps them in memory."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes = 0

    def _put(self, item: _Read) -> None:
        self._bytes += _size_of(item)
        super()._put(item)

    def _get(self) -> _Read:
        item: _Read = super()._get()
        self._bytes -= _size_of(item)
        return item

    def full(self) -> bool:
        """Return whether the next event has to wait."""
        return super().full() or self._bytes >= WAITING_BYTES


def _size_of(item: _Read) -> int:
    _, event = item
    return event.ByteSize() if isinstance(event, event_pb2.ExecutionEvent) else 0


async def merge_events(
    streams: Sequence[AsyncGenerator[event_pb2.ExecutionEvent, None]], quiet_s: float
) -> AsyncGenerator[tuple[int, event_pb2.ExecutionEvent] | None, None]:
    """Read streams concurrently and yield each event with the position of its stream, or None after a pause.

    Raises the error of the first stream that fails. Closing the generator closes all streams.
    """
    waiting = _WaitingEvents(WAITING_EVENTS)

    async def follow(position: int, stream: AsyncGenerator[event_pb2.ExecutionEvent, None]) -> None:
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    await waiting.put((position, event))
        except Exception as error:  # noqa: BLE001 - the reader of the queue raises it
            await waiting.put((position, error))
        else:
            await waiting.put((position, None))

    following = [asyncio.create_task(follow(*numbered)) for numbered in enumerate(streams)]
    running = len(following)
    try:
        while running:
            read = await _next_of(waiting, quiet_s)
            if read is None:
                yield None
                continue
            position, event = read
            if isinstance(event, Exception):
                raise event
            if event is None:
                running -= 1
            else:
                yield position, event
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def _next_of(waiting: asyncio.Queue[_Read], quiet_s: float) -> _Read | None:
    """Return the next item, or None after a pause."""
    try:
        async with asyncio.timeout(quiet_s):  # In Python 3.11, wait_for may lose a cancellation.
            return await waiting.get()
    except TimeoutError:
        return None
