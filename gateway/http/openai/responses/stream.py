"""The stream of `/v1/responses`: pure translation of an execution's events into events of this API.

A sequence number counts the events so far, except that text counts by its characters. A number therefore identifies a
position in the answer, regardless of how the text was split into deltas. A lost stream resumes after that position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.http.bodies import AnswerShape
from gateway.http.failures import error_of
from gateway.http.openai.answers import completed, logprobs_of, text_of
from gateway.http.openai.responses.items import Item, call_item, id_of_item, message_item, reasoning_item, text_part
from gateway.http.openai.responses.objects import ResponseHead, status_of_item
from gateway.http.streams.blocks import Block, BlockKind, Blocks, Step
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import PaganticError

_DELTAS = {
    BlockKind.REASONING: "response.reasoning_text.delta",
    BlockKind.TEXT: "response.output_text.delta",
    BlockKind.CALL: "response.function_call_arguments.delta",
}
_PREFIXES = {BlockKind.REASONING: "rs", BlockKind.TEXT: "msg", BlockKind.CALL: "fc"}


class ResponseEvent(AnswerShape):
    """An event of a response, such as `response.output_text.delta`."""

    type: str
    sequence_number: int


class ResponseEvents:
    """Produces the events of a response in order.

    Args:
    head: The head of the response.
    after: Only events after this sequence number are sent.
    """

    def __init__(self, head: ResponseHead, after: int = -1) -> None:
        self._head = head
        self._after = after
        self._sequence = -1
        self._blocks = Blocks()
        self._response: execution_pb2.SystemResponse | None = None  # Set before the rest of the answer is sent.

    def first(self) -> Iterator[Mapping[str, Any]]:
        """Yield the opening events of every stream."""
        yield from self._event("response.created", response=self._head.begun())
        yield from self._event("response.in_progress", response=self._head.running())

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[Mapping[str, Any]]:
        """Yield the events for an event of the execution.

        Raises the error of a response that failed before the client received any of it, or Aborted if an attempt is
        discarded or its text is changed after the client received some of it.
        """
        for step, block, text in self._blocks.of(event):
            yield from self._moved(step, block, text)
        if self._blocks.response is not None:
            yield from self._end(self._blocks.response)

    def error(self, error: PaganticError, request_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield the event for an error that ends the stream early."""
        if self._response is not None and self._response.HasField("error"):
            yield from self._ended_with(self._response)
            return
        described = error_of(error, request_id)
        yield from self._event("error", code=described["code"], message=described["message"], param=None)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[Mapping[str, Any]]:
        self._response = response
        if not self._blocks.all:
            completed(response)
        for step, block, text in self._blocks.rest(text_of(response)):
            yield from self._moved(step, block, text)
        yield from self._ended_with(response)

    def _ended_with(self, response: execution_pb2.SystemResponse) -> Iterator[Mapping[str, Any]]:
        """Yield the last event. Its response has the streamed items if these contain the whole text."""
        calls = {call.id for call in response.tool_calls}
        blocks = [block for block in self._blocks.all if block.kind is not BlockKind.CALL or block.call_id in calls]
        text = "".join(block.text for block in blocks if block.kind is BlockKind.TEXT)
        items = [self._item(block) for block in blocks] if text == text_of(response) else []
        ended = self._head.ended(response, items)
        kind = {"cancelled": "response.failed"}.get(ended["status"], f"response.{ended['status']}")
        yield from self._event(kind, response=ended)

    def _moved(self, step: Step, block: Block, text: str) -> Iterator[Mapping[str, Any]]:
        match step:
            case Step.BEGIN:
                yield from self._begun(block)
            case Step.GROW:
                yield from self._grown(block, text)
            case Step.END:
                yield from self._ended(block)

    def _begun(self, block: Block) -> Iterator[Mapping[str, Any]]:
        item = self._item(block)
        item["status"] = "in_progress"
        if block.kind is not BlockKind.CALL:
            item["content"] = []
        yield from self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind is not BlockKind.CALL:
            yield from self._event("response.content_part.added", **self._place(block), part=self._part(block))

    def _grown(self, block: Block, text: str) -> Iterator[Mapping[str, Any]]:
        self._sequence += len(text)
        new = self._sequence - self._after  # The number of new characters.
        if new <= 0:
            return
        fields = {**self._place(block), "delta": text[-new:], "sequence_number": self._sequence}
        if block.kind is BlockKind.TEXT:
            fields["logprobs"] = []
        yield {"type": _DELTAS[block.kind], **fields}

    def _ended(self, block: Block) -> Iterator[Mapping[str, Any]]:
        place = self._place(block)
        match block.kind:
            case BlockKind.REASONING:
                yield from self._event("response.reasoning_text.done", **place, text=block.text)
            case BlockKind.TEXT:
                yield from self._event(
                    "response.output_text.done", **place, text=block.text, logprobs=self._logprobs_of(block)
                )
            case BlockKind.CALL:
                done = {"name": self._item(block)["name"], "arguments": block.text}
                yield from self._event("response.function_call_arguments.done", **place, **done)
        if block.kind is not BlockKind.CALL:
            yield from self._event("response.content_part.done", **place, part=self._part(block))
        yield from self._event("response.output_item.done", output_index=block.index, item=self._item(block))

    def _item(self, block: Block) -> Item:
        """Return the item for the current state of a block."""
        item_id = self._id_of(block)
        if block.kind is BlockKind.REASONING:
            return reasoning_item(item_id, block.text)
        response, status = self._response, "completed"
        if block.kind is BlockKind.TEXT:
            if response is not None and block is self._blocks.all[-1]:
                status = status_of_item(response)
            return message_item(item_id, block.text, status, self._logprobs_of(block))
        if response is not None and block.call_id not in {call.id for call in response.tool_calls}:
            status = "incomplete"  # A limit or a stop text cut the call short.
        call = message_pb2.ToolCall(id=block.call_id, name=block.name, arguments_json=block.text)
        return self._head.as_named(call_item(item_id, call, status))

    def _logprobs_of(self, block: Block) -> list[dict[str, Any]]:
        """Return the log-probabilities of a text. The orchestrator reports them last, and only for the last text."""
        texts = [other for other in self._blocks.all if other.kind is BlockKind.TEXT]
        if self._response is None or not block.text or block is not texts[-1]:
            return []
        return (logprobs_of(self._response) or {"content": []})["content"]

    def _id_of(self, block: Block) -> str:
        return id_of_item(_PREFIXES[block.kind], self._head.request.request_id, block.number)

    def _part(self, block: Block) -> dict[str, Any]:
        if block.kind is BlockKind.REASONING:
            return {"type": "reasoning_text", "text": block.text}
        return text_part(block.text, self._logprobs_of(block))

    def _place(self, block: Block) -> dict[str, Any]:
        """Return the fields that identify the content of a block."""
        place = {"item_id": self._id_of(block), "output_index": block.index}
        if block.kind is not BlockKind.CALL:
            place["content_index"] = 0
        return place

    def _event(self, kind: str, **fields: Any) -> Iterator[Mapping[str, Any]]:
        self._sequence += 1
        if self._sequence > self._after:
            yield {"type": kind, "sequence_number": self._sequence, **fields}
