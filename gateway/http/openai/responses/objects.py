"""Builds the `response` object for a request and its result. The module is pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, cast

from gateway.http.bodies import AnswerShape
from gateway.http.openai.answers import Extension, extension_of, finish_reason_of, is_filtered, is_unfinished
from gateway.http.openai.responses.items import Item, output_items
from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import failure_from_proto

ID_PREFIX = "resp_"
KIND = "response"

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_UNLESS_SENT: dict[str, Any] = {
    "background": False,
    "completed_at": None,
    "conversation": None,
    "frequency_penalty": 0.0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "default",
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}
_CANCELLED = (error_pb2.ERROR_CODE_CANCELLED_SIGNAL, error_pb2.ERROR_CODE_CANCELLED_TIMEOUT)


class ResponseUsage(AnswerShape):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseFailure(AnswerShape):
    """The reason that a response has no answer. The message begins with the code of the taxonomy."""

    code: str
    message: str


class ResponseObject(AnswerShape):
    """A response. Only an ended response has `pagantic`."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    error: ResponseFailure | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    model: str
    output: list[Item]
    text: dict[str, Any]
    tools: list[dict[str, Any]]
    usage: ResponseUsage
    metadata: dict[str, str]
    pagantic: NotRequired[Extension]


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The content of a response before it has an answer.

    Attributes:
        request: The request in its form for the orchestrator.
        echo: The parts of the client's request that the response repeats and for which the orchestrator's request has
            no field.
        ignored: Fields of the request that have no effect.
    """

    request: execution_pb2.SystemRequest
    echo: dict[str, Any]
    ignored: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id of the response."""
        return ID_PREFIX + self.request.request_id

    def running(self) -> ResponseObject:
        """Return the response while it has no answer yet."""
        running = self.queued()
        running["status"] = "in_progress"
        return running

    def ended(self, response: execution_pb2.SystemResponse) -> ResponseObject:
        """Return the response with its answer, or with the reason that it has none."""
        ended, status = self.queued(), status_of(response)
        ended["status"] = status
        ended["output"] = output_items(response, "completed" if status == "completed" else "incomplete")
        ended["usage"] = usage_of(response.token_usage)
        ended["pagantic"] = extension_of([response], self.ignored)
        if status == "incomplete":
            reason = "content_filter" if is_filtered(response) else "max_output_tokens"
            ended["incomplete_details"] = {"reason": reason}
        if status in ("failed", "cancelled"):
            failure = failure_from_proto(response.error)
            code = failure.code.value if failure.code is not None else ""
            ended["error"] = {"code": "server_error", "message": f"{code}: {failure.message}".removeprefix(": ")}
        return ended

    def queued(self) -> ResponseObject:
        """Return the response at the time of its admission."""
        fields = {
            "id": self.id,
            "object": KIND,
            "status": "queued",
            "error": None,
            "incomplete_details": None,
            "instructions": self.request.prompt.text or None,
            "output": [],
            "service_tier": "default",
            "text": {"format": _format_of(self.request)},
            "tools": [_tool_of(tool) for tool in self.request.client_tools],
            "usage": usage_of(usage_pb2.TokenUsage()),
            **_UNLESS_SENT,
            **self.echo,
        }
        return cast("ResponseObject", fields)


def status_of(response: execution_pb2.SystemResponse) -> Status:
    """Return the status of a response that has ended."""
    if is_unfinished(response):
        return "incomplete"
    if response.error.code in _CANCELLED:
        return "cancelled"
    if response.HasField("error"):
        return "failed"
    if finish_reason_of(response) == "length":
        return "incomplete"
    return "completed"


def usage_of(usage: usage_pb2.TokenUsage) -> ResponseUsage:
    """Return a usage in the form that responses and decisions share."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _format_of(request: execution_pb2.SystemRequest) -> dict[str, Any]:
    if not request.output.schema_json:
        return {"type": "text"}
    return {"type": "json_schema", "name": "answer", "schema": json.loads(request.output.schema_json), "strict": True}


def _tool_of(tool: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": json.loads(tool.parameters_json),
        "strict": True,
    }
