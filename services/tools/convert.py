"""Tool messages <-> the domain."""

from __future__ import annotations

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic_common.codec.errors import optional_failure_to_proto
from pagantic_common.codec.messages import (
    duration_to_proto,
    tool_definition_to_proto,
    tool_progress_to_proto,
    tool_result_to_proto,
)
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolProgress
from pagantic_common.tools.function import MAX_TIMEOUT_S
from services.tools.app.execution import Outcome
from services.tools.ports import Tool

NANOS_PER_S = 10**9


def timeout_from_proto(request: pb.ExecuteToolRequest) -> float | None:
    """Decode the timeout in seconds; unset and zero are None. Raises InvalidRequest for a timeout out of range."""
    timeout = request.timeout
    if not (0 <= timeout.seconds <= MAX_TIMEOUT_S and 0 <= timeout.nanos < NANOS_PER_S):
        raise InvalidRequest(
            f"timeout is {timeout.seconds} s and {timeout.nanos} ns: it must be between 0 and {MAX_TIMEOUT_S} s"
        )
    return timeout.ToNanoseconds() / NANOS_PER_S or None


def registered_tool_to_proto(tool: Tool) -> pb.RegisteredTool:
    """Encode a tool and whether it can be called."""
    reason = tool.unavailable_reason
    return pb.RegisteredTool(
        definition=tool_definition_to_proto(tool.definition), available=not reason, unavailable_reason=reason
    )


def report_to_proto(report: ToolProgress | Outcome) -> pb.ExecuteToolStreamResponse:
    """Encode the progress of a call, or its outcome."""
    if isinstance(report, Outcome):
        return pb.ExecuteToolStreamResponse(completed=outcome_to_proto(report))
    return pb.ExecuteToolStreamResponse(progress=tool_progress_to_proto(report))


def outcome_to_proto(outcome: Outcome) -> pb.ExecuteToolResponse:
    """Encode the outcome of a call."""
    return pb.ExecuteToolResponse(
        result=tool_result_to_proto(outcome.result),
        error=optional_failure_to_proto(outcome.failure),
        duration=duration_to_proto(outcome.duration_s),
        attempts=outcome.attempts,
    )
