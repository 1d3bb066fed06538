"""Reads an execution to its end, over connections that may be lost on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from gateway.tui.work.answer import Answer
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import DeadlineExceeded, PaganticError, Unavailable

FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 2.0
PATIENCE_S: Final = 120.0


async def follow_to_end(
    client: AsyncClient,
    answer: Answer,
    request: execution_pb2.SystemRequest | None,
    on_change: Callable[[bool], None],
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Read the events of an execution into its answer until it is complete.

    Raises the PaganticError of a request of which no event came, and of a connection that is lost for longer than the
    patience. A request that an orchestrator has taken runs in the background, so nothing of it is lost meanwhile.

    Args:
        client: The client.
        answer: What is known of the execution, if anything.
        request: The request to begin with; None where the execution has begun.
        on_change: Called with False after each event, and with True when the connection is lost.
        patience_s: Longest time without an event after a lost connection, seconds.
    """
    lost = _Lost(patience_s)
    is_again = False
    while answer.response is None:
        begun = answer.version
        try:
            await _read(_open(client, answer, request), answer, on_change, is_again=is_again)
        except (Unavailable, DeadlineExceeded) as error:
            failure: PaganticError = error
        else:
            failure = Unavailable("the stream ended before its execution")
        if answer.response is not None:
            return
        if request is not None and not answer.sequence:
            raise failure
        if answer.version > begun:
            lost.is_back()
        is_again = True
        if isinstance(failure, Unavailable):
            on_change(True)
            await lost.wait_after(failure)


class _Lost:
    """Waits for a connection, longer each time; a call whose own deadline passed has not lost it."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._wait_s = FIRST_WAIT_S

    def is_back(self) -> None:
        """Begin anew after an event."""
        self._since_s = None
        self._wait_s = FIRST_WAIT_S

    async def wait_after(self, failure: PaganticError) -> None:
        """Wait until the next try; raises the failure where the patience is over."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s > self._patience_s:
            raise failure
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, MAX_WAIT_S)


def _open(
    client: AsyncClient, answer: Answer, request: execution_pb2.SystemRequest | None
) -> AsyncGenerator[event_pb2.ExecutionEvent, None]:
    if request is not None and not answer.sequence:
        return client.stream(request)
    return client.follow(answer.request_id, after_sequence=answer.sequence)


async def _read(
    events: AsyncGenerator[event_pb2.ExecutionEvent, None],
    answer: Answer,
    on_change: Callable[[bool], None],
    *,
    is_again: bool,
) -> None:
    """Read events; those of a later connection begin with the texts after the last stored event, once more."""
    async with aclosing(events):
        async for event in events:
            if is_again:
                answer.rewind()
                is_again = False
            answer.take(event)
            on_change(False)
