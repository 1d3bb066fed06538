"""The stream of Ollama's API: turns the events of an execution into lines. Pure: events in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gateway.http.failures import error_of, status_of
from gateway.http.ollama.answers import LineHead, ending_of
from gateway.http.ollama.errors import error_body
from gateway.http.openai.answers import completed, text_of
from gateway.http.streams.blocks import BlockKind, Blocks, Move, Step
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import PaganticError


class AnswerLines:
    """The lines of an answer, in their order."""

    def __init__(self, head: LineHead) -> None:
        self._head = head
        self._blocks = Blocks(has_calls=False)  # The last lines have them, for their arguments are objects.

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that begin every stream: there are none."""
        yield from ()

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[dict[str, Any]]:
        """Yield the lines for an event of the execution.

        Raises the error of a response, and Aborted for a discarded attempt if the client already has some of its text.
        """
        yield from self._lines(self._blocks.of(event))
        if self._blocks.response is not None:
            yield from self._end(completed(self._blocks.response))

    def error(self, error: PaganticError, request_id: str) -> Iterator[dict[str, Any]]:
        """Yield the line of an error that ends the stream early."""
        yield error_body(error_of(error, request_id), status_of(error), request_id)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[dict[str, Any]]:
        yield from self._lines(self._blocks.rest(text_of(response)))
        if response.tool_calls:
            yield self._head.line(calls=response.tool_calls)
        yield self._head.line(is_done=True) | ending_of(self._head, response)

    def _lines(self, moves: Iterable[Move]) -> Iterator[dict[str, Any]]:
        """Yield the lines for moves, a line for each piece of text."""
        for step, block, text in moves:
            if step is Step.GROW and block.kind is BlockKind.REASONING:
                yield self._head.line(thinking=text)
            elif step is Step.GROW:
                yield self._head.line(text)
