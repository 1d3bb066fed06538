"""The stream of `/v1/responses`: turns the events of an execution into this API's. Pure: events in, events out.

A sequence number counts the events so far, and of the text as many as it has characters. So it names a place in the
answer, however the text was cut into deltas, and a stream that was lost goes on after that place.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.http.openai.answers import text_of
from gateway.http.openai.responses.items import call_item, message_item, reasoning_item, text_part
from gateway.http.openai.responses.objects import COMPLETED, ResponseHead
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import Aborted

_REASONING, _MESSAGE, _CALL = "reasoning", "message", "function_call"
_DELTAS = {
    _REASONING: "response.reasoning_text.delta",
    _MESSAGE: "response.output_text.delta",
    _CALL: "response.function_call_arguments.delta",
}

_PREFIXES = {_REASONING: "rs", _MESSAGE: "msg", _CALL: "fc"}


@dataclass(slots=True)
class _Item:
    """An item that is being sent."""

    kind: str
    id: str
    index: int
    text: str = ""
    call_id: str = ""
    name: str = ""

    @property
    def place(self) -> dict[str, Any]:
        """Return the fields that name its content."""
        place = {"item_id": self.id, "output_index": self.index}
        if self.kind != _CALL:
            place["content_index"] = 0
        return place


class ResponseEvents:
    """The events of one response, in their order.

    Args:
        head: Of the response.
        after: Only what comes after this sequence number is sent.
    """

    def __init__(self, head: ResponseHead, after: int = -1) -> None:
        self._head = head
        self._after = after
        self._sequence = -1
        self._items: list[_Item] = []
        self._open: _Item | None = None

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the events that every stream begins with."""
        yield from self._event("response.created", response=self._head.queued())
        yield from self._event("response.in_progress", response=self._head.running())

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[dict[str, Any]]:
        """Yield the events of an event of the execution.

        Raises Aborted where an attempt is discarded whose text the client has already.
        """
        match event.WhichOneof("event"):
            case "reasoning_delta":
                yield from self._text(_REASONING, event.reasoning_delta.text)
            case "content_delta":
                yield from self._text(_MESSAGE, event.content_delta.text)
            case "tool_call_delta":
                delta = event.tool_call_delta
                if delta.name:
                    yield from self._begin(_CALL, delta.id, delta.name)
                yield from self._text(_CALL, delta.arguments_json)
            case "attempt_discarded" if self._items:
                raise Aborted(
                    f"attempt {event.attempt_discarded.attempt} was discarded after its text was sent: "
                    f"{event.attempt_discarded.reason}: send the request again, or without stream"
                )
            case "completed":
                yield from self._end(event.completed.response)

    def error(self, error: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the event of an error that ends the stream early."""
        yield from self._event("error", code=error["code"], message=error["message"], param=None)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[dict[str, Any]]:
        yield from self._rest(_REASONING, response.reasoning)
        yield from self._rest(_MESSAGE, text_of(response))
        yield from self._rest_of_calls(response.tool_calls)
        yield from self._close()
        ended = self._head.ended(response)
        kind = {"cancelled": "response.failed"}.get(ended["status"], f"response.{ended['status']}")
        yield from self._event(kind, response=ended)

    def _rest(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        """Yield what of a text was not sent, as of a stored answer; a repaired answer stays as it was sent."""
        sent = "".join(item.text for item in self._items if item.kind == kind)
        if text.startswith(sent):
            yield from self._text(kind, text[len(sent) :])

    def _rest_of_calls(self, calls: Any) -> Iterator[dict[str, Any]]:
        sent = [item for item in self._items if item.kind == _CALL]
        if sent and sent[-1] is self._open and len(sent) <= len(calls):
            yield from self._text(_CALL, calls[len(sent) - 1].arguments_json[len(sent[-1].text) :])
        for call in calls[len(sent) :]:
            yield from self._begin(_CALL, call.id, call.name)
            yield from self._text(_CALL, call.arguments_json)

    def _text(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        if not text:
            return
        item = self._open
        if item is None or item.kind != kind:
            item = yield from self._begin(kind)
        item.text += text
        self._sequence += len(text)
        new = self._sequence - self._after  # characters that the client lacks
        if new <= 0:
            return
        fields = {**item.place, "delta": text[-new:], "sequence_number": self._sequence}
        if kind == _MESSAGE:
            fields["logprobs"] = []
        yield {"type": _DELTAS[kind], **fields}

    def _begin(self, kind: str, call_id: str = "", name: str = "") -> Generator[dict[str, Any], None, _Item]:
        yield from self._close()
        item_id = self._id_of(kind, sum(item.kind == kind for item in self._items))
        item = _Item(kind, item_id, len(self._items), call_id=call_id, name=name)
        self._items.append(item)
        self._open = item
        yield from self._event(
            "response.output_item.added", output_index=item.index, item=_begun(item) | {"status": "in_progress"}
        )
        if kind != _CALL:
            yield from self._event("response.content_part.added", **item.place, part=_part(item, ""))
        return item

    def _id_of(self, kind: str, number: int) -> str:
        """Return the id of an item: that which the whole response gives it, if it has no more of these."""
        name = f"{_PREFIXES[kind]}_{self._head.request.request_id}"
        if kind == _CALL or number:
            return f"{name}_{number}"
        return name

    def _close(self) -> Iterator[dict[str, Any]]:
        item, self._open = self._open, None
        if item is None:
            return
        match item.kind:
            case "reasoning":
                yield from self._event("response.reasoning_text.done", **item.place, text=item.text)
            case "message":
                yield from self._event("response.output_text.done", **item.place, text=item.text, logprobs=[])
            case _:
                done = {"name": item.name, "arguments": item.text}
                yield from self._event("response.function_call_arguments.done", **item.place, **done)
        if item.kind != _CALL:
            yield from self._event("response.content_part.done", **item.place, part=_part(item, item.text))
        yield from self._event("response.output_item.done", output_index=item.index, item=_ended(item))

    def _event(self, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        self._sequence += 1
        if self._sequence > self._after:
            yield {"type": kind, "sequence_number": self._sequence, **fields}


def _part(item: _Item, text: str) -> dict[str, Any]:
    if item.kind == _REASONING:
        return {"type": "reasoning_text", "text": text}
    return text_part(text)


def _begun(item: _Item) -> dict[str, Any]:
    if item.kind == _CALL:
        return _ended(_Item(_CALL, item.id, item.index, call_id=item.call_id, name=item.name))
    return _ended(item) | {"content": []}


def _ended(item: _Item) -> dict[str, Any]:
    if item.kind == _REASONING:
        return reasoning_item(item.id, item.text)
    if item.kind == _MESSAGE:
        return message_item(item.id, item.text, COMPLETED)
    return call_item(item.id, message_pb2.ToolCall(id=item.call_id, name=item.name, arguments_json=item.text))
