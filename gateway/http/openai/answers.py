"""Builds the answers of `/v1/chat/completions`: whole chats, and the chunks of a stream.

The module is pure: it converts responses and events of an execution into objects of OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, get_args

from google.protobuf import json_format
from pydantic import RootModel

from gateway.http.bodies import AnswerShape
from gateway.http.failures import OpenAIError
from gateway.http.streams.blocks import discarded_after_sending, rest_of
from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client import AnswerState, Delta, DeltaKind
from pagantic_common.client.responses import raise_for_error
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.codec.fields import name_of
from pagantic_common.codec.validation import guarantee_from_proto

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
_FINISH_REASONS: dict[int, FinishReason] = {
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_TOOL: "tool_calls",
}
_FIELDS = {DeltaKind.TEXT: "content", DeltaKind.REASONING: "reasoning_content"}
_Reported = Literal["citations", "warnings", "candidates", "step_results", "tool_calls_made"]
_REPORTED: tuple[_Reported, ...] = get_args(_Reported)


class Extension(AnswerShape):
    """Response details that the client's API has no field for. `ignored` names the request's fields without effect."""

    request_id: str
    request_ids: list[str]
    guarantee: NotRequired[str]
    violations: NotRequired[list[dict[str, Any]]]
    confidence: NotRequired[float]
    confidence_source: NotRequired[str]
    not_in_sources: NotRequired[float]
    seed: NotRequired[int]
    citations: NotRequired[list[dict[str, Any]]]
    warnings: NotRequired[list[dict[str, Any]]]
    candidates: NotRequired[list[dict[str, Any]]]
    step_results: NotRequired[list[dict[str, Any]]]
    tool_calls_made: NotRequired[list[dict[str, Any]]]
    variant: NotRequired[dict[str, Any]]
    filtered: NotRequired[dict[str, str]]
    ignored: NotRequired[list[str]]


class CalledFunctionObject(AnswerShape):
    """The function of a call. `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCallObject(AnswerShape):
    """A call of a tool that the client runs."""

    id: str
    type: Literal["function"]
    function: CalledFunctionObject


class ChatMessage(AnswerShape):
    """The message of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[Any]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallObject]]


class TokenLogprobs(AnswerShape):
    """The log-probabilities of the tokens of a choice."""

    content: list[dict[str, Any]]
    refusal: None


class ChatChoice(AnswerShape):
    """One of the generated answers."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: TokenLogprobs | None


class ChatUsage(AnswerShape):
    """The tokens of all choices. A prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatCompletion(AnswerShape):
    """The answer to a chat. Only a stored answer has `metadata`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    service_tier: str
    pagantic: Extension
    metadata: NotRequired[dict[str, str]]


class ChunkChoice(AnswerShape):
    """The new part of a choice in a stream."""

    index: int
    delta: dict[str, Any]
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None


class AnswerPart(AnswerShape):
    """The common fields of all parts of answers."""

    id: str
    created: int
    model: str
    usage: NotRequired[ChatUsage | None]
    pagantic: NotRequired[Extension]


class ChatCompletionChunk(AnswerPart):
    """A part of the answer to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]


class ChatEvent(RootModel[ChatCompletionChunk | OpenAIError]):
    """The data of an event. `[DONE]`, which is not JSON, comes last."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The common start of all parts of an answer: its id, the name of its model, and the time in seconds.

    `has_usage` is set if the last chunk of a stream reports the usage; the usage of the other chunks is null.
    """

    id: str
    model: str
    created_s: int
    has_usage: bool = False


def completion_of(
    heading: Heading, responses: Sequence[execution_pb2.SystemResponse], ignored: Sequence[str]
) -> ChatCompletion:
    """Return the `chat.completion` object for the responses, with a choice for each response."""
    return {
        "id": heading.id,
        "object": "chat.completion",
        "created": heading.created_s,
        "model": heading.model,
        "choices": [_choice(index, response) for index, response in enumerate(responses)],
        "usage": usage_of(responses),
        "service_tier": "default",
        "pagantic": extension_of(responses, ignored),
    }


def _choice(index: int, response: execution_pb2.SystemResponse) -> ChatChoice:
    message: ChatMessage = {
        "role": "assistant",
        "content": text_of(response) or None,
        "refusal": None,
        "annotations": [],
    }
    if response.reasoning:
        message["reasoning_content"] = response.reasoning
    if response.tool_calls:
        message["tool_calls"] = [call_of(call) for call in response.tool_calls]
    elif message["content"] is None:
        message["content"] = ""
    return {
        "index": index,
        "message": message,
        "finish_reason": finish_reason_of(response),
        "logprobs": logprobs_of(response),
    }


def call_of(call: message_pb2.ToolCall) -> ToolCallObject:
    """Return a call of a tool that the client runs."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}


def is_cut(response: execution_pb2.SystemResponse) -> bool:
    """Return whether the response failed only because a limit or a stop text cut its output.

    Both are finish reasons in this API.
    """
    return response.error.code == error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED


def was_stopped(response: execution_pb2.SystemResponse) -> bool:
    """Return whether a stop text of the client cut the output before it satisfied its contract."""
    return is_cut(response) and "stop" in failure_from_proto(response.error).details


def is_filtered(response: execution_pb2.SystemResponse) -> bool:
    """Return whether a guard blocked the output, which is a finish reason in this API. Other blocks are errors."""
    if response.error.code != error_pb2.ERROR_CODE_GUARD_BLOCKED or response.error.retryable:
        return False
    return failure_from_proto(response.error).details.get("stage") == "output"


def is_unfinished(response: execution_pb2.SystemResponse) -> bool:
    """Return whether the response has an answer, but a limit or a stop text cut it or a guard blocked it."""
    return is_cut(response) or is_filtered(response)


def completed(response: execution_pb2.SystemResponse) -> execution_pb2.SystemResponse:
    """Return a response whose answer is complete, cut or filtered. Raises the error of any other response."""
    if is_unfinished(response):
        return response
    return raise_for_error(response)


def text_of(response: execution_pb2.SystemResponse) -> str:
    """Return the answer as a stream sends it: the texts around calls of the deployment's tools, and then the content.

    The content of an answer that satisfies a schema is its JSON. A truncated answer ends where it was cut.
    """
    return response.earlier_content + response.content


def finish_reason_of(response: execution_pb2.SystemResponse) -> FinishReason:
    """Return the reason that the answer ended."""
    if was_stopped(response):
        return "stop"
    if is_cut(response):
        return "length"
    if is_filtered(response):
        return "content_filter"
    return _FINISH_REASONS.get(response.finish_reason, "stop")


def logprobs_of(response: execution_pb2.SystemResponse) -> TokenLogprobs | None:
    """Return the log-probabilities of the answer's tokens, or None if they were not requested."""
    if not response.logprobs:
        return None
    content = [
        {**_logprob(token), "top_logprobs": [_logprob(other) for other in token.top]} for token in response.logprobs
    ]
    return {"content": content, "refusal": None}


def _logprob(token: generation_pb2.TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.piece.decode(errors="replace"),
        "bytes": list(token.piece),
        "logprob": token.logprob,
    }


def usage_of(responses: Sequence[execution_pb2.SystemResponse], choices_per_prompt: int = 0) -> ChatUsage:
    """Return the usage of a request: each prompt once, as read by its first choice, and the output of all choices.

    Args:
    responses: The responses in the order of the choices.
    choices_per_prompt: The number of consecutive choices that share a prompt. 0 means that all of them share one.
    """
    prompts = [response.token_usage for response in responses[:: choices_per_prompt or len(responses)]]
    prompt_tokens = sum(usage.prompt_tokens for usage in prompts)
    output_tokens = sum(response.token_usage.output_tokens for response in responses)
    reasoning_tokens = sum(response.token_usage.reasoning_tokens for response in responses)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_prompt_tokens for usage in prompts)},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def extension_of(responses: Sequence[execution_pb2.SystemResponse], ignored: Sequence[str]) -> Extension:
    """Return the contents of the responses that this API has no field for.

    Args:
    responses: A response for each choice. The first is reported in full, and the rest only by their ids.
    ignored: Fields of the request that have no effect.
    """
    first = responses[0]
    extension: Extension = {"request_id": first.request_id, "request_ids": [each.request_id for each in responses]}
    _add_judgement(extension, first)
    for name in _REPORTED:
        if values := getattr(first, name):
            extension[name] = [_plain(value) for value in values]
    if first.HasField("variant"):
        extension["variant"] = _plain(first.variant)
    if is_filtered(first):
        extension["filtered"] = dict(failure_from_proto(first.error).details)
    if ignored:
        extension["ignored"] = list(ignored)
    return extension


def _add_judgement(extension: Extension, response: execution_pb2.SystemResponse) -> None:
    """Add the findings about the answer."""
    if response.HasField("validation"):
        extension["guarantee"] = guarantee_from_proto(response.validation.guarantee).value
        extension["violations"] = [_plain(violation) for violation in response.validation.remaining_violations]
    if response.HasField("confidence"):
        source = name_of(execution_pb2.ConfidenceSource, response.confidence_source, "CONFIDENCE_SOURCE_")
        extension["confidence"] = response.confidence
        extension["confidence_source"] = source
    if response.HasField("not_in_sources"):
        extension["not_in_sources"] = response.not_in_sources
    if response.HasField("effective_seed"):
        extension["seed"] = response.effective_seed


def _plain(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return plain


class ChoiceChunks:
    """Produces the chunks of a choice in the order of its events."""

    def __init__(self, heading: Heading, index: int, ignored: Sequence[str]) -> None:
        self._heading = heading
        self._index = index
        self._ignored = ignored
        self._state = AnswerState()
        self.response: execution_pb2.SystemResponse | None = None

    def first(self) -> Iterator[ChatCompletionChunk]:
        """Yield the chunk that states the role."""
        yield self._chunk({"role": "assistant", "content": "", "refusal": None})

    def of(self, event: event_pb2.ExecutionEvent) -> Iterator[ChatCompletionChunk]:
        """Yield the chunks for an event.

        Raises the error of a failed response, or Aborted if an attempt is discarded or its text is changed after the
        client received some of it.
        """
        yield from self._chunks(self._state.take(event))
        if self._state.response is not None:
            yield from self._end(self._state.response)

    def _end(self, response: execution_pb2.SystemResponse) -> Iterator[ChatCompletionChunk]:
        self.response = completed(response)
        yield from self._chunks(rest_of(self._state, text_of(response)))
        last = self._chunk({}, finish_reason=finish_reason_of(response), logprobs=logprobs_of(response))
        last["pagantic"] = extension_of([response], self._ignored)
        yield last

    def _chunks(self, deltas: Iterable[Delta]) -> Iterator[ChatCompletionChunk]:
        """Yield a chunk for each text, and a single chunk for all calls."""
        calls = []
        for delta in deltas:
            if delta.is_void:
                raise discarded_after_sending(delta)
            if delta.kind is DeltaKind.CALL:
                calls.append(_call_delta(delta))
            else:
                yield self._chunk({_FIELDS[delta.kind]: delta.text})
        if calls:
            yield self._chunk({"tool_calls": calls})

    def _chunk(
        self, delta: dict[str, Any], *, finish_reason: FinishReason | None = None, logprobs: TokenLogprobs | None = None
    ) -> ChatCompletionChunk:
        return _chunk_of(
            self._heading,
            [{"index": self._index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}],
        )


def usage_chunk(heading: Heading, responses: Sequence[execution_pb2.SystemResponse]) -> ChatCompletionChunk:
    """Return the chunk with the usage of all choices, which ends a stream if the client requested it."""
    chunk = _chunk_of(heading, [])
    chunk["usage"] = usage_of(responses)
    return chunk


def _chunk_of(heading: Heading, choices: list[ChunkChoice]) -> ChatCompletionChunk:
    chunk: ChatCompletionChunk = {
        "id": heading.id,
        "object": "chat.completion.chunk",
        "created": heading.created_s,
        "model": heading.model,
        "choices": choices,
    }
    if heading.has_usage:
        chunk["usage"] = None
    return chunk


def _call_delta(delta: Delta) -> dict[str, Any]:
    function = {"arguments": delta.text}
    if not delta.name:
        return {"index": delta.index, "function": function}
    function = {"name": delta.name, **function}
    return {"index": delta.index, "id": delta.call_id, "type": "function", "function": function}
