"""Detects that a model repeats the tool calls of its previous round with the same arguments."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.messages import Message, Role, ToolCall
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.voting import canonical_json


def repeats_round(calls: Sequence[ToolCall], latest: Sequence[ToolCallRecord]) -> bool:
    """Return whether the calls repeat the latest round.

    Returns False if a retry of any call of that round might succeed.
    """
    if any(record.is_retryable for record in latest):
        return False
    return {_key(call.name, call.arguments_json) for call in calls} == {
        _key(record.name, record.arguments_json) for record in latest
    }


def result_messages(calls: Sequence[ToolCall], records: Sequence[ToolCallRecord]) -> tuple[Message, ...]:
    """Return the results as messages in the order of the calls. A repeated call gets its earlier result."""
    by_id = {record.id: record for record in records}
    by_key = {_key(record.name, record.arguments_json): record for record in records}
    pairs = [(call, by_id.get(call.id) or by_key.get(_key(call.name, call.arguments_json))) for call in calls]
    return tuple(
        Message(Role.TOOL, content=_content_of(call, record), tool_call_id=call.id, name=call.name)
        for call, record in pairs
        if record is not None
    )


def _content_of(call: ToolCall, record: ToolCallRecord) -> str:
    """Return the result of a call for the model, including the arguments if an approval changed them."""
    if record.id != call.id or record.arguments_json == call.arguments_json:
        return record.result
    return f"The call was approved with other arguments: {record.arguments_json}\n\n{record.result}"


def _key(name: str, arguments_json: str) -> tuple[str, str]:
    try:
        parse_json(arguments_json or "{}", is_rewritable=True)
    except JsonTextError:
        return name, arguments_json
    return name, canonical_json(arguments_json or "{}")
