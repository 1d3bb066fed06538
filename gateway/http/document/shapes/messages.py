"""The shapes of Anthropic's API."""

from __future__ import annotations

from typing import Any, Literal

from gateway.http.document.shapes.shape import ABSENT, AnswerShape, Extension


class MessageBlock(AnswerShape):
    """A block of text, thinking, or a call of a tool."""

    type: Literal["text", "thinking", "tool_use"]


class MessageUsage(AnswerShape):
    """The tokens of a message; tokens from the cache are not among the input tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(AnswerShape):
    """The answer to a conversation."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageBlock]
    stop_reason: Literal["end_turn", "max_tokens", "tool_use", "refusal"]
    stop_sequence: None
    usage: MessageUsage
    pagantic: Extension


class MessageEvent(AnswerShape):
    """An event of a message, such as `content_block_delta`; an `error` ends a stream early."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]
    index: int = ABSENT
    error: dict[str, Any] = ABSENT
