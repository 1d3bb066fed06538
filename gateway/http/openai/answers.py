"""Responses of the orchestrator in the form of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client.responses import raise_for_error
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.codec.fields import name_of
from pagantic_common.codec.validation import guarantee_from_proto

_FINISH_REASONS = {
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_TOOL: "tool_calls",
}


@dataclass(frozen=True, slots=True)
class Heading:
    """The start of every part of an answer: its id, the model that the client named, and the time in seconds."""

    id: str
    model: str
    created_s: int

    def of(self, kind: str) -> dict[str, Any]:
        """Return the fields for an object of this kind."""
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}


def completion_of(
    heading: Heading, responses: Sequence[execution_pb2.SystemResponse], ignored: Sequence[str]
) -> dict[str, Any]:
    """Return the object `chat.completion` of the responses, with a choice for each response."""
    return {
        **heading.of("chat.completion"),
        "choices": [_choice(index, response) for index, response in enumerate(responses)],
        "usage": usage_of(responses),
        "service_tier": "default",
        "pagantic": extension_of(responses, ignored),
    }


def _choice(index: int, response: execution_pb2.SystemResponse) -> dict[str, Any]:
    message: dict[str, Any] = {
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


def call_of(call: message_pb2.ToolCall) -> dict[str, Any]:
    """Return a call of a tool that the client runs."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}


def is_cut(response: execution_pb2.SystemResponse) -> bool:
    """Return whether the response failed only because a limit cut its output, which this API calls a finish reason."""
    return response.error.code == error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED


def is_filtered(response: execution_pb2.SystemResponse) -> bool:
    """Return whether a guard blocked the output, a finish reason in this API; other blocks are errors."""
    if response.error.code != error_pb2.ERROR_CODE_GUARD_BLOCKED or response.error.retryable:
        return False
    return failure_from_proto(response.error).details.get("stage") == "output"


def is_unfinished(response: execution_pb2.SystemResponse) -> bool:
    """Return whether the response has an answer that was cut by a limit or blocked by a guard."""
    return is_cut(response) or is_filtered(response)


def completed(response: execution_pb2.SystemResponse) -> execution_pb2.SystemResponse:
    """Return a response that has an answer, whole, cut or filtered; raises the error of another."""
    if is_unfinished(response):
        return response
    return raise_for_error(response)


def text_of(response: execution_pb2.SystemResponse) -> str:
    """Return the answer: as JSON where a schema was given, else as text."""
    if response.structured_output_json and not response.citations and not is_unfinished(response):
        return response.structured_output_json
    return response.content


def finish_reason_of(response: execution_pb2.SystemResponse) -> str:
    """Return why the answer ended."""
    if is_cut(response):
        return "length"
    if is_filtered(response):
        return "content_filter"
    return _FINISH_REASONS.get(response.finish_reason, "stop")


def logprobs_of(response: execution_pb2.SystemResponse) -> dict[str, Any] | None:
    """Return the log-probabilities of the answer's tokens; None if they were not requested."""
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


def usage_of(responses: Sequence[execution_pb2.SystemResponse]) -> dict[str, Any]:
    """Return the usage of all responses together. The prompt counts once for each choice: each has read it."""
    usages = [response.token_usage for response in responses]
    prompt = sum(usage.prompt_tokens for usage in usages)
    output = sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_prompt_tokens for usage in usages)},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning_tokens for usage in usages)},
    }


def extension_of(responses: Sequence[execution_pb2.SystemResponse], ignored: Sequence[str]) -> dict[str, Any]:
    """Return the contents of the responses that this API has no field for.

    Args:
        responses: A response for each choice; the first is reported in full, the others by their ids.
        ignored: Fields of the request without effect.
    """
    first = responses[0]
    told: dict[str, Any] = {"request_id": first.request_id, "request_ids": [one.request_id for one in responses]}
    told |= _judgement(first)
    for name in ("citations", "warnings", "candidates", "step_results", "tool_calls_made"):
        if values := getattr(first, name):
            told[name] = [_plain(value) for value in values]
    if first.HasField("variant"):
        told["variant"] = _plain(first.variant)
    if is_filtered(first):
        told["filtered"] = dict(failure_from_proto(first.error).details)
    if ignored:
        told["ignored"] = list(ignored)
    return told


def _judgement(response: execution_pb2.SystemResponse) -> dict[str, Any]:
    """Return the findings about the answer."""
    told: dict[str, Any] = {}
    if response.HasField("validation"):
        told["guarantee"] = guarantee_from_proto(response.validation.guarantee).value
        told["violations"] = [_plain(violation) for violation in response.validation.remaining_violations]
    if response.HasField("confidence"):
        source = name_of(execution_pb2.ConfidenceSource, response.confidence_source, "CONFIDENCE_SOURCE_")
        told |= {"confidence": response.confidence, "confidence_source": source}
    if response.HasField("not_in_sources"):
        told["not_in_sources"] = response.not_in_sources
    if response.HasField("effective_seed"):
        told["seed"] = response.effective_seed
    return told


def _plain(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return plain
