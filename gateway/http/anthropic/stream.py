"""The stream of `/v1/messages`: turns the events of an execution into this API's. Pure: events in, events out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.http.anthropic.answers import MessageHead, call_block, ending_of, text_block, thinking_block, usage_of
from gateway.http.anthropic.errors import error_body
from gateway.http.failures import error_of, status_of
from gateway.http.openai.answers import completed, extension_of, text_of
from gateway.http.streams.blocks import Block, BlockKind, Blocks, Step
from pagantic.common.v1 import usage_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import PaganticError

# Each kind of block has a type of delta, and the delta a field for its text.
_DELTAS = {
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


class MessageEvents:
    """The events of a message, in their order."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._blocks = Blocks()

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the event that every stream begins with; its usage is 0, because the last event has it."""
        yield {"type": "message_start", "message": self._head.of((), usage_pb2.TokenUsage())}

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[dict[str, Any]]:
        """Yield the events for an event of the execution.

        Raises the error of a response, and Aborted for a discarded attempt if the client already has some of its text.
        """
        for step, block, text in self._blocks.of(event):
            yield _moved(step, block, text)
        if self._blocks.response is not None:
            yield from self._end(completed(self._blocks.response))

    def error(self, error: PaganticError, request_id: str) -> Iterator[dict[str, Any]]:
        """Yield the event of an error that ends the stream early."""
        yield error_body(error_of(error, request_id), status_of(error), request_id)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[dict[str, Any]]:
        for step, block, text in self._blocks.rest(text_of(response)):
            yield _moved(step, block, text)
        yield {
            "type": "message_delta",
            "delta": ending_of(response),
            "usage": usage_of(response.token_usage),
            "pagantic": extension_of([response], self._head.ignored),
        }
        yield {"type": "message_stop"}


def _moved(step: Step, block: Block, text: str) -> dict[str, Any]:
    if step is Step.BEGIN:
        return {"type": "content_block_start", "index": block.index, "content_block": _begun(block)}
    if step is Step.END:
        return {"type": "content_block_stop", "index": block.index}
    kind, field = _DELTAS[block.kind]
    return {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, field: text}}


def _begun(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.REASONING:
        return thinking_block("")
    if block.kind is BlockKind.TEXT:
        return text_block("")
    return call_block(block.call_id, block.name, {})
