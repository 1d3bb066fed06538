"""Responses of the orchestrator in the form of `/v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.http.openai.answers import extension_of, finish_reason_of, text_of
from pagantic.common.v1 import usage_pb2
from pagantic.orchestrator.v1 import execution_pb2

# The orchestrator does not report which stop ended an answer, so that `stop_sequence` is `end_turn`, too.
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The start of a message: its id, and the model that the client named; and the fields without effect."""

    id: str
    model: str
    ignored: Sequence[str] = ()

    def of(self, content: Sequence[dict[str, Any]], usage: usage_pb2.TokenUsage) -> dict[str, Any]:
        """Return a message that has this content, and has not ended."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": list(content),
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage_of(usage),
        }


def message_of(head: MessageHead, response: execution_pb2.SystemResponse) -> dict[str, Any]:
    """Return the message of a response."""
    return {
        **head.of(_content_of(response), response.token_usage),
        **ending_of(response),
        "pagantic": extension_of([response], head.ignored),
    }


def ending_of(response: execution_pb2.SystemResponse) -> dict[str, Any]:
    """Return why a message ended."""
    return {"stop_reason": _STOP_REASONS[finish_reason_of(response)], "stop_sequence": None}


def usage_of(usage: usage_pb2.TokenUsage) -> dict[str, Any]:
    """Return a usage as this API counts it: tokens that came from the cache are not among the input tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_prompt_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_creation": None,
        "inference_geo": None,
        "server_tool_use": None,
        "service_tier": "standard",
    }


def thinking_block(text: str) -> dict[str, Any]:
    """Return a block of reasoning; nothing here signs or checks it."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def text_block(text: str) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": text, "citations": None}


def call_block(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the block of a call of a tool that the client runs."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments, "caller": {"type": "direct"}}


def _content_of(response: execution_pb2.SystemResponse) -> list[dict[str, Any]]:
    blocks = []
    if response.reasoning:
        blocks.append(thinking_block(response.reasoning))
    if text := text_of(response):
        blocks.append(text_block(text))
    blocks += [call_block(call.id, call.name, json.loads(call.arguments_json)) for call in response.tool_calls]
    return blocks
