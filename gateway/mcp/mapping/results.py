"""Turns responses and failures into tool results: text for models, and structured content for programs."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult, TextContent

from gateway.mcp.mapping.failures import FailureText, describe_failure
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import raise_for_error
from pagantic_common.client.descriptions import describe_votes, guarantee_name
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

REQUEST_ID, SESSION_ID = "pagantic/request_id", "pagantic/session_id"
CONFIDENCE, GUARANTEE, WARNINGS = "pagantic/confidence", "pagantic/guarantee", "pagantic/warnings"


def result_of(response: execution_pb2.SystemResponse) -> CallToolResult:
    """Return the result of one of the server's own tools."""
    try:
        raise_for_error(response)
    except PaganticError as error:
        return failed(error, response.request_id, response.content)
    content = [TextContent(text=response.structured_output_json or response.content or _last_output(response))]
    if response.candidates:
        content.append(TextContent(text=describe_votes(response)))
    return CallToolResult(
        content=[*content],
        structured_content=_object_of(response.structured_output_json),
        meta=_meta_of(response),
    )


def tool_result_of(response: execution_pb2.SystemResponse) -> CallToolResult:
    """Return the result of a tool from the response of the plan that ran it."""
    try:
        raise_for_error(response)
    except PaganticError as error:
        return failed(error, response.request_id)
    text = response.content
    return CallToolResult(
        content=[TextContent(text=text)], structured_content=_object_of(text), meta=_meta_of(response)
    )


def failed(error: PaganticError, request_id: str, content: str = "") -> CallToolResult:
    """Return the result of a failed call. `content` is the text generated before the failure."""
    failure = describe_failure(error)
    text = failure.text
    if request_id:
        text += f"\nrequest: {request_id}"
    blocks = [TextContent(text=text)]
    if content:
        blocks.append(TextContent(text=content))
    return CallToolResult(
        content=[*blocks],
        structured_content=_fields_of(failure),
        is_error=True,
        meta={REQUEST_ID: request_id} if request_id else None,
    )


def _fields_of(failure: FailureText) -> dict[str, Any]:
    return {
        "code": failure.code,
        "message": failure.message,
        "next_step": failure.next_step,
        "is_retryable": failure.is_retryable,
    }


def _last_output(response: execution_pb2.SystemResponse) -> str:
    """Return the output of a plan's last step as text, even if the output, such as chunks, is not text."""
    if not response.step_results:
        return ""
    output = response.step_results[-1].output
    match output.WhichOneof("value"):
        case "context":
            return "\n\n".join(f"({chunk.source}) {chunk.content}" for chunk in output.context.chunks)
        case "candidates":
            return "\n".join(candidate.content for candidate in output.candidates.candidates)
        case _:
            return output.content or output.raw_json


def _object_of(text: str) -> dict[str, Any] | None:
    """Parse text as a JSON object. Return None for other text, because structured content must be an object."""
    if not text.startswith("{"):
        return None
    try:
        value = parse_json(text, is_rewritable=True)
    except JsonTextError:
        return None
    if not isinstance(value, dict):
        return None
    return value


def _meta_of(response: execution_pb2.SystemResponse) -> dict[str, Any]:
    meta: dict[str, Any] = {REQUEST_ID: response.request_id}
    if response.session_id:
        meta[SESSION_ID] = response.session_id
    if response.HasField("confidence"):
        meta[CONFIDENCE] = response.confidence
    if response.validation.guarantee:
        meta[GUARANTEE] = guarantee_name(response.validation.guarantee)
    if response.warnings:
        meta[WARNINGS] = [warning.message for warning in response.warnings]
    return meta
