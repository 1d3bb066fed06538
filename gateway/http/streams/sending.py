"""Sends the answer of an execution while it is generated, in the form of an API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from gateway.http.streams.running import QUIET, QUIET_S, merge_events
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.text.json_text import dump_json

Encode = Callable[[Iterable[Mapping[str, Any]]], str]


class AnswerEvents(Protocol):
    """The events of an answer in an API's form."""

    def first(self) -> Iterator[Mapping[str, Any]]:
        """Yield the events that every stream begins with."""

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[Mapping[str, Any]]:
        """Yield the events of an event of the execution; raises PaganticError for an answer that failed."""

    def error(self, error: PaganticError, request_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield the event of an error that ends the stream early."""


def encode_sent_events(events: Iterable[Mapping[str, Any]]) -> str:
    """Return events as server-sent events, named by their type."""
    return "".join(f"event: {event['type']}\ndata: {dump_json(event)}\n\n" for event in events)


def encode_lines(events: Iterable[Mapping[str, Any]]) -> str:
    """Return events as lines of JSON."""
    return "".join(f"{dump_json(event)}\n" for event in events)


async def send_answer(
    incoming: AsyncGenerator[event_pb2.ExecutionEvent, None],
    events: AnswerEvents,
    request_id: str,
    *,
    encode: Encode = encode_sent_events,
    quiet: str = QUIET,
) -> AsyncGenerator[str, None]:
    """Yield the text of a stream; an error after its beginning is an event, too. Raises an error before it.

    Args:
        incoming: The events of the execution.
        events: Turn them into the API's.
        request_id: Of the execution.
        encode: Makes the text of events.
        quiet: Text for a quiet time, so that nothing on the way takes the connection for dead.
    """
    has_begun = False
    try:
        async with aclosing(_texts_of(incoming, events, encode, quiet)) as texts:
            async for text in texts:
                has_begun = True
                yield text
    except PaganticError as error:
        if not has_begun:
            raise
        yield encode(events.error(error, request_id))


async def _texts_of(
    incoming: AsyncGenerator[event_pb2.ExecutionEvent, None], events: AnswerEvents, encode: Encode, quiet: str
) -> AsyncGenerator[str, None]:
    """Yield the text of a stream; the execution must not fail."""
    is_first = True
    async with aclosing(merge_events([incoming], QUIET_S)) as merged:
        async for one in merged:
            if is_first:
                is_first = False
                yield encode(events.first())
            yield quiet if one is None else encode(events.of(one[1]))
