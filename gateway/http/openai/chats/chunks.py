"""The stream of `/v1/chat/completions`: turns the events of executions into chunks. Pure: events in, chunks out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.http.openai.answers import (
    Heading,
    call_of,
    extension_of,
    finish_reason_of,
    is_unfinished,
    logprobs_of,
    text_of,
    usage_of,
)
from gateway.http.streams.blocks import discarded_after_sending
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client.responses import raise_for_error

_KIND = "chat.completion.chunk"


class ChoiceChunks:
    """The chunks of a choice, in the order of its events."""

    def __init__(self, heading: Heading, index: int, ignored: Sequence[str]) -> None:
        self._heading = heading
        self._index = index
        self._ignored = ignored
        self._sent = ""
        self._has_sent_reasoning = False
        self._has_sent = False
        self._has_sent_calls = False
        self.response: execution_pb2.SystemResponse | None = None

    def first(self) -> Iterator[dict[str, Any]]:
        """Yield the chunk that names the role."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an event.

        Raises the error of a response, and Aborted for a discarded attempt if the client already has some of its text.
        """
        match event.WhichOneof("event"):
            case "content_delta":
                self._sent += event.content_delta.text
                yield self._delta({"content": event.content_delta.text})
            case "reasoning_delta":
                self._has_sent_reasoning = True
                yield self._delta({"reasoning_content": event.reasoning_delta.text})
            case "tool_call_delta":
                self._has_sent_calls = True
                yield self._delta({"tool_calls": [_call_delta(event)]})
            case "attempt_discarded" if self._has_sent:
                raise discarded_after_sending(event.attempt_discarded)
            case "completed":
                yield from self._end(event.completed.response)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[dict[str, Any]]:
        if not is_unfinished(response):
            raise_for_error(response)
        if response.reasoning and not self._has_sent_reasoning:
            yield self._delta({"reasoning_content": response.reasoning})
        text = text_of(response)
        if not self._sent and text:
            yield self._delta({"content": text})
        if not self._has_sent_calls and response.tool_calls:  # as of an answer that was stored
            yield self._delta(
                {"tool_calls": [{"index": i, **call_of(call)} for i, call in enumerate(response.tool_calls)]}
            )
        self.response = response
        last = self._chunk({}, finish_reason=finish_reason_of(response), logprobs=logprobs_of(response))
        yield {**last, "pagantic": extension_of([response], self._ignored)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        self._has_sent = True
        return self._chunk(delta)

    def _chunk(
        self, delta: dict[str, Any], *, finish_reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": self._index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return {**self._heading.of(_KIND), "choices": [choice]}


def usage_chunk(heading: Heading, responses: Sequence[execution_pb2.SystemResponse]) -> dict[str, Any]:
    """Return the chunk with the usage of all choices, which ends a stream if the client requested it."""
    return {**heading.of(_KIND), "choices": [], "usage": usage_of(responses)}


def _call_delta(event: event_pb2.ExecutionEvent) -> dict[str, Any]:
    delta = event.tool_call_delta
    function: dict[str, Any] = {"arguments": delta.arguments_json}
    if not delta.name:
        return {"index": delta.index, "function": function}
    function["name"] = delta.name
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}
