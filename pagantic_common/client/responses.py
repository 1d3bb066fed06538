"""Resends unanswered requests, and reads the error of a response."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.domain.backoff import Backoff
from pagantic_common.domain.errors import PaganticError, Unavailable
from pagantic_common.rpc.status import error_of

T = TypeVar("T")

REPEATS: Final = Backoff(first_s=0.2, max_s=2.0)


def raise_for_error(response: execution_pb2.SystemResponse) -> execution_pb2.SystemResponse:
    """Return the response, or raise its error as a PaganticError."""
    if response.HasField("error"):
        raise error_of(failure_from_proto(response.error))
    return response


class Patience:
    """Waits between the attempts of a request, for at most `patience_s` seconds after the first failure.

    No wait lasts beyond `until_s`, a time on the monotonic clock.
    """

    def __init__(self, patience_s: float, backoff: Backoff = REPEATS, *, until_s: float = math.inf) -> None:
        self._patience_s = patience_s
        self._until_s = until_s
        self._backoff = backoff
        self._failures = 0
        self._end_s: float | None = None

    async def wait_after(self, failure: PaganticError) -> None:
        """Wait until the next attempt. Raises `failure` if the patience would end before that attempt."""
        now_s = time.monotonic()
        if self._end_s is None:
            self._end_s = min(now_s + self._patience_s, self._until_s)
        self._failures += 1
        wait_s = self._backoff.wait_s(self._failures, stated_s=failure.retry_after_s)
        if now_s + wait_s > self._end_s:
            raise failure
        await asyncio.sleep(wait_s)


async def answered(send: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Return the result of `send`. Call it again as long as it raises Unavailable and the patience lasts."""
    while True:
        try:
            return await send()
        except Unavailable as error:
            refused = error
        await patience.wait_after(refused)


async def answered_stream(send: Callable[[], AsyncGenerator[T, None]], patience: Patience) -> AsyncGenerator[T, None]:
    """Yield the items of `send`. Call it again as long as it raises Unavailable before its first item."""
    begun = await answered(lambda: _begin(send()), patience)
    if begun is None:
        return
    first, others = begun
    async with aclosing(others):
        yield first
        async for item in others:
            yield item


async def _begin(items: AsyncGenerator[T, None]) -> tuple[T, AsyncGenerator[T, None]] | None:
    try:
        return await anext(items), items
    except StopAsyncIteration:
        return None
