"""Tool calls that a model makes again with the same arguments, and what they gave the first time."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.messages import Message, Role, ToolCall
from services.orchestrator.core.response import ToolCallRecord
from services.orchestrator.core.voting import canonical_json


def new_calls(calls: Sequence[ToolCall], records: Sequence[ToolCallRecord]) -> tuple[ToolCall, ...]:
    """Return the calls that have to run: their answer is not known from an earlier round."""
    return tuple(call for call in calls if recorded(call, records) is None)


def recorded(call: ToolCall, records: Sequence[ToolCallRecord]) -> ToolCallRecord | None:
    """Return the record of an earlier call of the same tool with the same arguments; None when it may end otherwise."""
    arguments = _canonical(call.arguments_json)
    for record in reversed(records):
        if record.name == call.name and _canonical(record.arguments_json) == arguments:
            return None if record.is_retryable else record
    return None


def result_messages(
    calls: Sequence[ToolCall], ran: Sequence[ToolCallRecord], earlier: Sequence[ToolCallRecord]
) -> tuple[Message, ...]:
    """Return what the model is told, in call order: of what ran now, or else of what ran earlier."""
    by_id = {record.id: record for record in ran}
    found = [(call, by_id.get(call.id) or recorded(call, earlier)) for call in calls]
    return tuple(
        Message(Role.TOOL, content=record.result, tool_call_id=call.id, name=call.name)
        for call, record in found
        if record is not None
    )


def _canonical(arguments_json: str) -> str:
    try:
        parse_json(arguments_json or "{}", is_rewritable=True)
    except JsonTextError:
        return arguments_json
    return canonical_json(arguments_json or "{}")
