"""The object `response`, of a request and its result. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gateway.http.openai.answers import extension_of, finish_reason_of, is_filtered, is_unfinished
from gateway.http.openai.responses.items import output_items
from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import failure_from_proto

ID_PREFIX = "resp_"
KIND = "response"

QUEUED, RUNNING = "queued", "in_progress"
COMPLETED, INCOMPLETE, FAILED, CANCELLED = "completed", "incomplete", "failed", "cancelled"
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


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The content of a response before it has an answer.

    Attributes:
        request: The request in its form for the orchestrator.
        echo: The parts of the client's request that the response repeats, and the orchestrator's request has no field
            for.
        ignored: Fields of the request without effect.
    """

    request: execution_pb2.SystemRequest
    echo: dict[str, Any]
    ignored: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id of the response."""
        return ID_PREFIX + self.request.request_id

    def queued(self) -> dict[str, Any]:
        """Return the response as it is when it is admitted."""
        return self._base()

    def running(self) -> dict[str, Any]:
        """Return the response as it is while it has no answer."""
        return {**self._base(), "status": RUNNING}

    def ended(self, response: execution_pb2.SystemResponse) -> dict[str, Any]:
        """Return the response with its answer, or with the reason for a missing answer."""
        status = status_of(response)
        fields: dict[str, Any] = {
            "status": status,
            "output": output_items(response, "completed" if status == COMPLETED else "incomplete"),
            "usage": _usage_of(response.token_usage),
            "pagantic": extension_of([response], self.ignored),
        }
        if status == INCOMPLETE:
            reason = "content_filter" if is_filtered(response) else "max_output_tokens"
            fields["incomplete_details"] = {"reason": reason}
        if status in (FAILED, CANCELLED):
            failure = failure_from_proto(response.error)
            code = failure.code.value if failure.code is not None else ""
            fields["error"] = {"code": "server_error", "message": f"{code}: {failure.message}".removeprefix(": ")}
        return {**self._base(), **fields}

    def _base(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": KIND,
            "status": QUEUED,
            "error": None,
            "incomplete_details": None,
            "instructions": self.request.prompt.text or None,
            "output": [],
            "service_tier": "default",
            "text": {"format": _format_of(self.request)},
            "tools": [_tool_of(tool) for tool in self.request.client_tools],
            "usage": _usage_of(usage_pb2.TokenUsage()),
            **_UNLESS_SENT,
            **self.echo,
        }


def status_of(response: execution_pb2.SystemResponse) -> str:
    """Return the status of a response that has ended."""
    if is_unfinished(response):
        return INCOMPLETE
    if response.error.code in _CANCELLED:
        return CANCELLED
    if response.HasField("error"):
        return FAILED
    if finish_reason_of(response) == "length":
        return INCOMPLETE
    return COMPLETED


def _usage_of(usage: usage_pb2.TokenUsage) -> dict[str, Any]:
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
