"""The operations of our own paths: executions, approvals, the document, and probes."""

from __future__ import annotations

from typing import Any

from gateway.http.document.operations import Access, Operation, Operations, Parameter, Tag
from gateway.http.document.shapes.shape import AnswerShape
from gateway.http.native.approvals import MAX_PAGE
from pagantic.orchestrator.v1 import approval_pb2, event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb

_EXECUTION = "/v1/executions/{request_id}"
_APPROVAL = "/v1/approvals/{request_id}/{tool_call_id}"


def _names(values: Any) -> list[str]:
    """Return the names of an enum, without the unset value."""
    return [name for name, number in values.items() if number]


class OpenApiDocument(AnswerShape):
    """This document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


NATIVE_OPERATIONS: Operations = {
    ("POST", "/v1/executions"): Operation(
        Tag.NATIVE,
        "execute",
        "Run a request; with `Accept: text/event-stream`, the answer is its events.",
        execution_pb2.SystemRequest.DESCRIPTOR,
        execution_pb2.SystemResponse.DESCRIPTOR,
        event_pb2.ExecutionEvent.DESCRIPTOR,
        makes="request_id",
    ),
    ("GET", "/v1/executions"): Operation(
        Tag.NATIVE,
        "listExecutions",
        "List executions without their responses, the newest first.",
        answer=pb.ListExecutionsResponse.DESCRIPTOR,
        parameters=(
            Parameter("session_id", {"type": "string"}, "Only those of this session."),
            Parameter("state", {"enum": _names(execution_pb2.LifecycleState)}, "Only those in this state."),
            Parameter("mode", {"enum": _names(execution_pb2.Mode)}, "Only those in this mode."),
            Parameter("page_size", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most executions; 0 is 50."),
            Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),
        ),
    ),
    ("GET", _EXECUTION): Operation(
        Tag.NATIVE,
        "getExecution",
        "Get an execution, or follow its events.",
        answer=execution_pb2.Execution.DESCRIPTOR,
        events=event_pb2.ExecutionEvent.DESCRIPTOR,
        parameters=(
            Parameter("last-event-id", {"type": "string"}, "The id of the last event that the client has.", "header"),
        ),
    ),
    ("DELETE", _EXECUTION): Operation(
        Tag.NATIVE, "cancelExecution", "Cancel an execution.", answer=pb.CancelExecutionResponse.DESCRIPTOR
    ),
    ("GET", f"{_EXECUTION}/timeline"): Operation(
        Tag.NATIVE, "getTimeline", "Get the stored events of an execution.", answer=pb.GetTimelineResponse.DESCRIPTOR
    ),
    ("GET", f"{_EXECUTION}/steps"): Operation(
        Tag.NATIVE, "listSteps", "List what the steps of a kept execution gave.", answer=pb.ListStepsResponse.DESCRIPTOR
    ),
    ("GET", "/v1/approvals"): Operation(
        Tag.NATIVE,
        "listApprovals",
        "List the tool calls that wait for a decision, the oldest first.",
        answer=pb.ListApprovalsResponse.DESCRIPTOR,
        parameters=(
            Parameter("request_id", {"type": "string"}, "Only calls of this execution."),
            Parameter("page_size", {"type": "integer", "minimum": 0, "maximum": MAX_PAGE}, "Most calls; 0 is 50."),
            Parameter("page_token", {"type": "string"}, "The `next_page_token` of the page before."),
        ),
    ),
    ("GET", _APPROVAL): Operation(
        Tag.NATIVE,
        "getApproval",
        "Get a tool call that waits for a decision.",
        answer=approval_pb2.Approval.DESCRIPTOR,
    ),
    ("POST", f"{_APPROVAL}/decision"): Operation(
        Tag.NATIVE,
        "resolveApproval",
        "Approve or reject a tool call.",
        pb.ResolveApprovalRequest.DESCRIPTOR,
        approval_pb2.Approval.DESCRIPTOR,
    ),
    ("GET", "/openapi.json"): Operation(
        Tag.DOCUMENT, "getDocument", "The document of this API.", answer=OpenApiDocument, access=Access.OPEN
    ),
    ("GET", "/docs"): Operation(
        Tag.DOCUMENT, "getPage", "The document as a page.", text_type="text/html", access=Access.OPEN
    ),
    ("GET", "/healthz"): Operation(Tag.PROBES, "isLive", "Tell whether the gateway lives.", access=Access.PROBE),
    ("GET", "/readyz"): Operation(
        Tag.PROBES, "isReady", "Tell whether the orchestrator takes requests.", access=Access.PROBE
    ),
}
