"""Reads an execution to its end, over connections that may be lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from gateway.cli.answering.lost_connections import PATIENCE_S, LostConnection
from gateway.tui.work.answer import Answer
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import DeadlineExceeded, Overloaded, PaganticError, Unavailable


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
    lost = LostConnection(patience_s)
    is_again = False
    while answer.response is None:
        begun = answer.version
        try:
            await _read(_open(client, answer, request), answer, on_change, is_again=is_again)
        except (Unavailable, Overloaded, DeadlineExceeded) as error:
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
        if not isinstance(failure, DeadlineExceeded):
            on_change(True)
            await asyncio.sleep(lost.next_wait_s(failure))


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
