"""Sends the answer of an execution as it is generated, in the form of an API."""

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
    """Produces the events of an answer in the form of an API."""

    def first(self) -> Iterator[Mapping[str, Any]]:
        """Yield the events that every stream begins with."""

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[Mapping[str, Any]]:
        """Yield the events for an event of the execution. Raises PaganticError if the answer failed."""

    def error(self, error: PaganticError, request_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield the events for an error that ends the stream early."""


def encode_sent_events(events: Iterable[Mapping[str, Any]]) -> str:
    """Return events as server-sent events named after their type."""
    return "".join(f"event: {event['type']}\ndata: {dump_json(event)}\n\n" for event in events)


def encode_lines(events: Iterable[Mapping[str, Any]]) -> str:
    """Return events as JSON, one per line."""
    return "".join(f"{dump_json(event)}\n" for event in events)


async def send_answer(
    incoming: AsyncGenerator[event_pb2.ExecutionEvent, None],
    events: AnswerEvents,
    request_id: str,
    *,
    encode: Encode = encode_sent_events,
    quiet: str = QUIET,
    opens_at_once: bool = False,
) -> AsyncGenerator[str, None]:
    """Yield the text of a stream. An error is raised before the stream begins, and becomes an event afterwards.

    Args:
    incoming: The events of the execution.
    events: Translates them into events of the API.
    request_id: The id of the execution.
    encode: Encodes events as text.
    quiet: Text to send after a pause, so that intermediaries do not consider the connection dead.
    opens_at_once: Whether the stream begins as soon as the execution is admitted. Otherwise it begins with the first
        text or after a quiet time, so that an earlier failure determines the status.
    """
    has_begun = False
    try:
        async with aclosing(_texts_of(incoming, events, encode, quiet, opens_at_once=opens_at_once)) as texts:
            async for text in texts:
                has_begun = True
                yield text
    except PaganticError as error:
        if not has_begun:
            raise
        yield encode(events.error(error, request_id))


async def _texts_of(
    incoming: AsyncGenerator[event_pb2.ExecutionEvent, None],
    events: AnswerEvents,
    encode: Encode,
    quiet: str,
    *,
    opens_at_once: bool,
) -> AsyncGenerator[str, None]:
    """Yield the text of a stream. Raises the error of a failed execution."""
    opening: str | None = encode(events.first())  # None after the opening was sent.
    async with aclosing(merge_events([incoming], QUIET_S)) as merged:
        async for item in merged:
            if opens_at_once and opening is not None:
                yield opening
                opening = None
            text = quiet if item is None else encode(events.of(item[1]))
            if text:
                yield (opening or "") + text
                opening = None
