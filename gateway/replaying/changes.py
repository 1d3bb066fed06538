"""Builds the request of a replay from the recorded request and the user's changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from gateway.written.errors import WrittenError
from gateway.written.request_fields import expand, merged
from pagantic.orchestrator.v1 import execution_pb2

RESULTS = "tool_results"
RECORDED_ID_METADATA = "replay.of"
_FIXED = ("request_id", "session_id", "trace_id", "replay", "background", "keep_request", "metadata", "mode")
# The fields of a group are alternatives: setting a field replaces the other fields.
_ALTERNATIVES = (
    frozenset({"text", "instructions", "template"}),
    frozenset({"grammar", "grammar_name"}),
    frozenset({"variant", "without_experiments"}),
)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed fields of the request, and changed results of tools by the ids of their calls."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[execution_pb2.ChangedResult, ...] = ()


def read_changes(written: Any) -> Changes:
    """Return the changes in a file, given as JSON values. Raises WrittenError if they are invalid."""
    if not isinstance(written, dict):
        raise WrittenError("changes are a mapping, as of prompt, hints, messages and tool_results")
    fields = dict(written)
    results = fields.pop(RESULTS, {})
    if not isinstance(results, dict):
        raise WrittenError(f"{RESULTS} is a mapping of ids of calls to results")
    for name in fields:
        if name in _FIXED:
            raise WrittenError(f"a replay does not change {name}")
        if not name.islower():
            raise WrittenError(f"write {name[:64]!r} as the contract has it, in lower case with underscores")
    return Changes(expand(fields), tuple(_result_of(call_id, value) for call_id, value in results.items()))


def request_of_replay(
    recorded: execution_pb2.SystemRequest, changes: Changes, replay_id: str, replay: execution_pb2.Replay
) -> execution_pb2.SystemRequest:
    """Return the recorded request with the changes, as a replay with its own id.

    Raises WrittenError if the changes are invalid.
    """
    before = json_format.MessageToDict(recorded, preserving_proto_field_name=True)
    request = execution_pb2.SystemRequest()
    try:
        json_format.ParseDict(merged(_without_replaced(before, changes.fields), changes.fields), request)
    except json_format.ParseError as error:
        raise WrittenError(f"it is no part of a SystemRequest: {' '.join(str(error).split())}") from None
    request.ClearField("session_id")
    request.ClearField("trace_id")
    request.ClearField("background")
    request.request_id = replay_id
    request.keep_request = True
    request.metadata[RECORDED_ID_METADATA] = recorded.request_id
    request.replay.CopyFrom(replay)
    request.replay.request_id = recorded.request_id
    request.replay.tool_results.extend(changes.results)
    return request


def _without_replaced(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded fields, except the fields that a change replaces with another field of the same group."""
    fields: dict[str, Any] = {}
    for name, value in before.items():
        others = set().union(*(group for group in _ALTERNATIVES if name in group)) - {name}
        if name not in changes and others & changes.keys():
            continue
        change = changes.get(name)
        if isinstance(value, dict) and isinstance(change, dict):
            fields[name] = _without_replaced(value, change)
        else:
            fields[name] = value
    return fields


def _result_of(call_id: str, value: Any) -> execution_pb2.ChangedResult:
    match value:
        case str():
            return execution_pb2.ChangedResult(tool_call_id=call_id, result=value)
        case {"result": str(result), **others} if others.keys() <= {"is_error"}:
            return execution_pb2.ChangedResult(
                tool_call_id=call_id, result=result, is_error=others.get("is_error", False) is True
            )
        case _:
            raise WrittenError(f"{RESULTS}.{call_id}: write the result as a text, or as {{result, is_error}}")
