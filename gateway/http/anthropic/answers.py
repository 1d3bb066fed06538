"""Builds the answers of `/v1/messages`: whole messages, the events of a stream, and errors.

The module is pure: it converts responses and events of an execution into objects of this API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired

from gateway.http.bodies import AnswerShape
from gateway.http.failures import CodedDetails, OpenAIErrorObject, coded_details, error_of, status_of
from gateway.http.openai.answers import Extension, FinishReason, completed, extension_of, finish_reason_of, text_of
from gateway.http.operations import REQUEST_ID, Dialect
from gateway.http.streams.blocks import Block, BlockKind, Blocks, Step
from pagantic.common.v1 import usage_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import PaganticError

_TOO_LARGE = 413
_ERROR_TYPES = {"server_error": "api_error"}  # The other types have the same names as in OpenAI's API.

StopReason = Literal["end_turn", "max_tokens", "tool_use", "refusal", "stop_sequence"]
_STOP_REASONS: dict[FinishReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
# For each kind of block: the type of its deltas, and the field of a delta that holds the text.
_DELTAS = {
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


class MessageBlock(AnswerShape):
    """A block of a message: text, thinking, or a tool call."""

    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[dict[str, Any]]
    caller: NotRequired[dict[str, Any]]


class MessageUsage(AnswerShape):
    """The tokens of a message. Cached tokens are not counted among the input tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]
    cache_creation: None
    inference_geo: None
    server_tool_use: None
    service_tier: str


class MessageParts(AnswerShape):
    """The fields that a message has while it is written and when it is complete."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageBlock]
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: MessageUsage


class BegunMessage(MessageParts):
    """An unfinished message."""

    stop_reason: None


class AnthropicMessage(MessageParts):
    """The answer to a conversation."""

    stop_reason: StopReason
    pagantic: Extension


class MessageEvent(AnswerShape):
    """An event of a message, such as `content_block_delta`. An `error` ends a stream early."""

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
    index: NotRequired[int]
    error: NotRequired[dict[str, Any]]
    message: NotRequired[BegunMessage]
    content_block: NotRequired[MessageBlock]
    delta: NotRequired[dict[str, Any]]
    usage: NotRequired[MessageUsage]
    pagantic: NotRequired[Extension]


class AnthropicErrorObject(AnswerShape):
    """The error object of Anthropic's API."""

    type: str
    message: str
    details: NotRequired[dict[str, str]]
    pagantic: CodedDetails


class AnthropicError(AnswerShape):
    """An error of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str


def error_body(described: OpenAIErrorObject, status: int, request_id: str) -> AnthropicError:
    """Return the body for an error."""
    kind = _ERROR_TYPES.get(described["type"], described["type"])
    if status == _TOO_LARGE:
        kind = "request_too_large"
    error: AnthropicErrorObject = {
        "type": kind,
        "message": described["message"],
        "pagantic": coded_details(described),
    }
    details = error["pagantic"].get("details", {})
    if "error_code" in details:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}


ANTHROPIC = Dialect("Anthropic", AnthropicError, error_body, id_headers=(REQUEST_ID, "request-id"))


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The start of a message: its id, the model that the client named, and the fields that have no effect."""

    id: str
    model: str
    ignored: Sequence[str] = ()

    def of(self, content: list[MessageBlock], usage: usage_pb2.TokenUsage) -> BegunMessage:
        """Return an unfinished message with this content."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage_of(usage),
        }


def message_of(head: MessageHead, response: execution_pb2.SystemResponse) -> AnthropicMessage:
    """Return the message for a response."""
    begun = head.of(_content_of(response), response.token_usage)
    begun["stop_sequence"] = response.matched_stop or None
    return {**begun, "stop_reason": stop_reason_of(response), "pagantic": extension_of([response], head.ignored)}


def stop_reason_of(response: execution_pb2.SystemResponse) -> StopReason:
    """Return the reason that the answer ended."""
    reason = _STOP_REASONS[finish_reason_of(response)]
    if reason == "end_turn" and response.matched_stop:
        return "stop_sequence"
    return reason


def usage_of(usage: usage_pb2.TokenUsage) -> MessageUsage:
    """Return the usage as this API counts it. Cached tokens are not counted among the input tokens."""
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


def thinking_block(text: str) -> MessageBlock:
    """Return a block of reasoning. The signature is empty, because reasoning is neither signed nor checked."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def text_block(text: str) -> MessageBlock:
    """Return a block of text."""
    return {"type": "text", "text": text}


def call_block(call_id: str, name: str, arguments: dict[str, Any]) -> MessageBlock:
    """Return the block for a call of a tool that the client runs."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments, "caller": {"type": "direct"}}


def _content_of(response: execution_pb2.SystemResponse) -> list[MessageBlock]:
    blocks = []
    if response.reasoning:
        blocks.append(thinking_block(response.reasoning))
    if text := text_of(response):
        blocks.append(text_block(text))
    blocks += [call_block(call.id, call.name, json.loads(call.arguments_json)) for call in response.tool_calls]
    return blocks


class MessageEvents:
    """Produces the events of a message in order."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._blocks = Blocks()

    def first(self) -> Iterator[MessageEvent]:
        """Yield the first event of every stream. Its usage is 0, because the last event reports the usage."""
        yield {"type": "message_start", "message": self._head.of([], usage_pb2.TokenUsage())}

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[MessageEvent]:
        """Yield the events for an event of the execution.

        Raises the error of a failed response, or Aborted if an attempt is discarded or its text is changed after the
        client received some of it.
        """
        for step, block, text in self._blocks.of(event):
            yield _moved(step, block, text)
        if self._blocks.response is not None:
            yield from self._end(completed(self._blocks.response))

    def error(self, error: PaganticError, request_id: str) -> Iterator[AnthropicError]:
        """Yield the event for an error that ends the stream early."""
        yield error_body(error_of(error, request_id), status_of(error), request_id)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[MessageEvent]:
        for step, block, text in self._blocks.rest(text_of(response)):
            yield _moved(step, block, text)
        yield {
            "type": "message_delta",
            "delta": {
                "stop_reason": stop_reason_of(response),
                "stop_sequence": response.matched_stop or None,
            },
            "usage": usage_of(response.token_usage),
            "pagantic": extension_of([response], self._head.ignored),
        }
        yield {"type": "message_stop"}


def _moved(step: Step, block: Block, text: str) -> MessageEvent:
    if step is Step.BEGIN:
        return {"type": "content_block_start", "index": block.index, "content_block": _begun(block)}
    if step is Step.END:
        return {"type": "content_block_stop", "index": block.index}
    kind, field = _DELTAS[block.kind]
    return {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, field: text}}


def _begun(block: Block) -> MessageBlock:
    if block.kind is BlockKind.REASONING:
        return thinking_block("")
    if block.kind is BlockKind.TEXT:
        return text_block("")
    return call_block(block.call_id, block.name, {})
