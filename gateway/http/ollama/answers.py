"""Responses of the orchestrator in the form of Ollama's API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.http.openai.answers import extension_of, finish_reason_of, text_of
from pagantic.common.v1 import message_pb2, usage_pb2
from pagantic.orchestrator.v1 import execution_pb2

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LineHead:
    """The common fields of every line of an answer.

    Args:
        model: The client's name of the model.
        created_at: The time of the request, as RFC 3339 writes it.
        is_chat: Whether the answer is a message, for `/api/chat`, or a text, for `/api/generate`.
        ignored: Fields of the request without effect.
    """

    model: str
    created_at: str
    is_chat: bool
    ignored: Sequence[str] = ()

    def line(
        self, text: str = "", thinking: str = "", calls: Sequence[message_pb2.ToolCall] = (), *, is_done: bool = False
    ) -> dict[str, Any]:
        """Return a line that has this part of the answer."""
        thought = {"thinking": thinking} if thinking else {}
        heading = {"model": self.model, "created_at": self.created_at}
        if not self.is_chat:
            return {**heading, "response": text, **thought, "done": is_done}
        message: dict[str, Any] = {"role": "assistant", "content": text, **thought}
        if calls:
            message["tool_calls"] = [_call(index, call) for index, call in enumerate(calls)]
        return {**heading, "message": message, "done": is_done}


def whole_of(head: LineHead, response: execution_pb2.SystemResponse) -> dict[str, Any]:
    """Return the whole answer of a response."""
    line = head.line(text_of(response), response.reasoning, response.tool_calls, is_done=True)
    return line | ending_of(head, response)


def ending_of(head: LineHead, response: execution_pb2.SystemResponse) -> dict[str, Any]:
    """Return the fields that end an answer. Calls of tools end it as `stop`, as Ollama has it."""
    reason = finish_reason_of(response)
    if reason == "tool_calls":
        reason = "stop"
    return {
        "done_reason": reason,
        **_usage(response.token_usage),
        "pagantic": extension_of([response], head.ignored),
    }


def _usage(usage: usage_pb2.TokenUsage) -> dict[str, Any]:
    """Return the tokens, and the time of decoding in nanoseconds, the only time that the orchestrator reports."""
    counts = {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.output_tokens}
    if not usage.decode_seconds:
        return counts
    return {**counts, "eval_duration": round(usage.decode_seconds * _NS)}


def _call(index: int, call: message_pb2.ToolCall) -> dict[str, Any]:
    function = {"index": index, "name": call.name, "arguments": json.loads(call.arguments_json)}
    return {"id": call.id, "function": function}
