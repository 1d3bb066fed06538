"""Tool messages <-> the domain."""

from __future__ import annotations

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.codec.messages import (
    duration_from_proto,
    duration_to_proto,
    tool_definition_to_proto,
    tool_result_to_proto,
)
from services.tools.app.execution import Outcome
from services.tools.ports import Tool


def timeout_from_proto(request: pb.ExecuteToolRequest) -> float | None:
    """Decode the timeout in seconds; unset or zero is None."""
    return duration_from_proto(request.timeout) or None


def registered_tool_to_proto(tool: Tool) -> pb.RegisteredTool:
    """Encode a tool and whether it can be called."""
    reason = tool.unavailable_reason
    return pb.RegisteredTool(
        definition=tool_definition_to_proto(tool.definition), available=not reason, unavailable_reason=reason
    )


def outcome_to_proto(outcome: Outcome) -> pb.ExecuteToolResponse:
    """Encode what a call gave."""
    return pb.ExecuteToolResponse(
        result=tool_result_to_proto(outcome.result),
        error=failure_to_proto(outcome.failure) if outcome.failure else None,
        duration=duration_to_proto(outcome.duration_s),
        attempts=outcome.attempts,
    )
