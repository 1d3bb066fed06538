"""Runs the choices of an answer together, as a whole or as a single stream. Each choice is a separate execution."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from gateway.http.failures import error_of
from gateway.http.openai.answers import completed
from gateway.http.openai.requests import SEEDS
from gateway.http.streams.running import QUIET, QUIET_S, merge_events, run_all
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.text.json_text import dump_json

_DONE = "data: [DONE]\n\n"
MakeUsage = Callable[[Sequence[execution_pb2.SystemResponse]], Mapping[str, Any]]


class Chunks(Protocol):
    """Produces the chunks of a choice in the order of its events."""

    response: execution_pb2.SystemResponse | None

    def first(self) -> Iterator[Mapping[str, Any]]:
        """Yield the opening chunks of the choice."""

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[Mapping[str, Any]]:
        """Yield the chunks for an event. Raises PaganticError if the answer failed."""


def choice_id(request_id: str, index: int) -> str:
    """Return the request id of a choice. The first choice has the id of the whole request."""
    if index == 0:
        return request_id
    return f"{request_id[:120]}.{index + 1}"


def as_choice(
    request: execution_pb2.SystemRequest, request_id: str, index: int, number: int
) -> execution_pb2.SystemRequest:
    """Return the request of a choice, with its own id and with a seed that differs from other choices of its prompt.

    Args:
    request: The request of the prompt.
    request_id: The id of the whole request.
    index: Position of the choice among all choices.
    number: Position of the choice among the choices of its prompt, from 0.
    """
    own = execution_pb2.SystemRequest()
    own.CopyFrom(request)
    own.request_id = choice_id(request_id, index)
    if number and own.hints.HasField("seed"):
        own.hints.seed = (own.hints.seed + number) % SEEDS
    return own


async def execute_all(
    client: AsyncClient, requests: Sequence[execution_pb2.SystemRequest]
) -> list[execution_pb2.SystemResponse]:
    """Return the responses of all choices. If a choice fails, stop the other choices and raise its PaganticError."""
    return await run_all([_execute(client, request) for request in requests])


async def _execute(client: AsyncClient, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    return completed(await client.execute(request))


async def stream_all(
    client: AsyncClient,
    requests: Sequence[execution_pb2.SystemRequest],
    choices: Sequence[Chunks],
    make_usage: MakeUsage | None,
) -> AsyncGenerator[str, None]:
    """Yield server-sent events. An error is raised before the first event, and becomes an event after it.

    Args:
    client: The client of the orchestrator.
    requests: A request for each choice. The first has the id of the whole request.
    choices: A producer of chunks for each choice.
    make_usage: Creates the chunk with the usage of all responses, or None for a stream without that chunk.
    """
    has_begun = False
    try:
        async with aclosing(_events(client, requests, choices)) as events:
            async for event in events:
                has_begun = True
                yield event
    except PaganticError as error:
        if not has_begun:
            raise
        yield _event({"error": error_of(error, requests[0].request_id)})
    else:
        if make_usage is not None:
            yield _event(make_usage([choice.response for choice in choices if choice.response is not None]))
    yield _DONE


async def _events(
    client: AsyncClient, requests: Sequence[execution_pb2.SystemRequest], choices: Sequence[Chunks]
) -> AsyncGenerator[str, None]:
    """Yield the events of the answer. Raises PaganticError if a choice fails.

    The opening chunks wait for the first text or for a pause, so that an earlier failure determines the status.
    """
    openings = [_event(chunk) for choice in choices for chunk in choice.first()]
    async with aclosing(merge_events([client.stream(request) for request in requests], QUIET_S)) as events:
        async for item in events:
            texts = list(_texts_of(item, choices))
            if texts:
                texts, openings = openings + texts, []
            for text in texts:
                yield text


def _texts_of(item: tuple[int, event_pb2.ExecutionEvent] | None, choices: Sequence[Chunks]) -> Iterator[str]:
    """Yield the texts for an event of a choice, or the text after a pause."""
    if item is None:
        yield QUIET
        return
    position, event = item
    for chunk in choices[position].of(event):
        yield _event(chunk)


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {dump_json(value)}\n\n"
