"""Builds the `response` object for a request and its result. The module is pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, cast

from pydantic import BaseModel

from gateway.http.bodies import AnswerShape
from gateway.http.openai.answers import (
    Extension,
    extension_of,
    finish_reason_of,
    is_filtered,
    is_unfinished,
    was_stopped,
)
from gateway.http.openai.forms import Notes
from gateway.http.openai.responses.items import Item, output_items
from pagantic.common.v1 import error_pb2, message_pb2, usage_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import failure_from_proto

ID_PREFIX = "resp_"
KIND = "response"
AS_SENT = "as_sent"  # The part of an echo that describes the sent format and tools, apart from their schemas.

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_UNLESS_SENT: dict[str, Any] = {
    "background": False,
    "completed_at": None,
    "conversation": None,
    "frequency_penalty": 0.0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "",
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


class FunctionAsSent(BaseModel):
    """A function as the client sent it. Missing parameters are in the request for the orchestrator."""

    name: str
    namespace: str
    strict: bool | None
    parameters: dict[str, Any] | None = None


class AsSent(BaseModel):
    """The format and the tools of a request as the client sent them, apart from their schemas."""

    functions: dict[str, FunctionAsSent] = {}
    namespaces: dict[str, str] = {}
    format: dict[str, Any] = {}


class ResponseEcho(BaseModel):
    """The parts of a request that its stored response repeats."""

    created_at: int
    as_sent: AsSent = AsSent()
    model: str = ""
    metadata: Notes = {}
    conversation: dict[str, str] = {}
    previous_response_id: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: int = 0
    max_output_tokens: int = 0
    reasoning: dict[str, Any] = {}
    tool_choice: str | dict[str, Any] = ""
    background: bool = False
    store: bool = True
    parallel_tool_calls: Any = None
    truncation: Any = None
    user: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None


class ResponseUsage(AnswerShape):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseFailure(AnswerShape):
    """The reason that a response has no answer. The message begins with the system's error code."""

    code: str
    message: str


class ResponseObject(AnswerShape):
    """A response. Only an ended response has `usage` and `pagantic`."""

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
    usage: ResponseUsage | None
    metadata: dict[str, str]
    pagantic: NotRequired[Extension]


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The content of a response before it has an answer.

    Attributes:
        request: The request in its form for the orchestrator.
        echo: The parts of the client's request that the response repeats but that the orchestrator's request has
            no field for.
        ignored: Fields of the request that have no effect.
    """

    request: execution_pb2.SystemRequest
    echo: dict[str, Any]
    ignored: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id of the response."""
        return ID_PREFIX + self.request.request_id

    def as_named(self, item: Item) -> Item:
        """Return an item. A call of a function in a namespace gets both names as the client sent them."""
        sent = self._as_sent("functions").get(item.get("name", ""), {})
        if item["type"] == "function_call" and sent.get("namespace"):
            item["name"], item["namespace"] = sent["name"], sent["namespace"]
        return item

    def running(self) -> ResponseObject:
        """Return the response while it has no answer yet."""
        running = self.queued()
        running["status"] = "in_progress"
        return running

    def begun(self) -> ResponseObject:
        """Return the response at the beginning of its stream. A background response may have to wait."""
        return self.queued() if self.echo.get("background") else self.running()

    def ended(self, response: execution_pb2.SystemResponse, items: Sequence[Item] = ()) -> ResponseObject:
        """Return the response with its answer, or with the reason why the answer is missing.

        Args:
        response: The response of the orchestrator.
        items: The items of the answer, if a stream had them; otherwise, the items of the whole answer.
        """
        ended, status = self.queued(), status_of(response)
        ended["status"] = status
        ended["output"] = [*items] or [self.as_named(item) for item in output_items(response, status_of_item(response))]
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
            "text": {"format": self._format()},
            "tools": self._tools(),
            "usage": None,
            **_UNLESS_SENT,
            **{name: value for name, value in self.echo.items() if name != AS_SENT},
        }
        return cast("ResponseObject", fields)

    def _as_sent(self, part: str) -> dict[str, Any]:
        kept: dict[str, Any] = self.echo.get(AS_SENT, {}).get(part) or {}
        return kept

    def _format(self) -> dict[str, Any]:
        """Return the format as the client sent it, or the format of a schema in the field `pagantic`."""
        schema_json = self.request.output.schema_json
        sent = self._as_sent("format")
        if not sent and schema_json:
            sent = {"type": "json_schema", "name": "answer", "strict": True}
        if schema_json and sent.get("type") == "json_schema":
            return {**sent, "schema": json.loads(schema_json)}
        return sent or {"type": "text"}

    def _tools(self) -> list[dict[str, Any]]:
        """Return the functions as the client sent them, each in its namespace, if any."""
        functions, namespaces = self._as_sent("functions"), self._as_sent("namespaces")
        groups: dict[str, list[dict[str, Any]]] = {}
        tools: list[dict[str, Any]] = []
        for definition in self.request.client_tools:
            sent = functions.get(definition.name, {"name": definition.name, "namespace": "", "strict": None})
            namespace = sent["namespace"]
            if namespace and namespace not in groups:
                groups[namespace] = []
                described = {"description": namespaces.get(namespace, ""), "tools": groups[namespace]}
                tools.append({"type": "namespace", "name": namespace, **described})
            groups.get(namespace, tools).append(_tool_of(definition, sent))
        return tools


def status_of_item(response: execution_pb2.SystemResponse) -> str:
    """Return the status of the message of a response that has ended."""
    return "completed" if status_of(response) == "completed" else "incomplete"


def status_of(response: execution_pb2.SystemResponse) -> Status:
    """Return the status of a response that has ended."""
    if was_stopped(response):
        return "completed"
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


def _tool_of(definition: message_pb2.ToolDefinition, sent: dict[str, Any]) -> dict[str, Any]:
    parameters = sent["parameters"] if "parameters" in sent else json.loads(definition.parameters_json)
    return {
        "type": "function",
        "name": sent["name"],
        "description": definition.description or None,
        "parameters": parameters,
        "strict": sent["strict"],
    }
