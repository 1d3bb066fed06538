"""Makes cases from recorded executions: the kept requests, with the recorded answers as expected answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from gateway.evaluation.scoring.answer import MISSING, answer_of_response
from gateway.evaluation.suite.model import MAX_NAME_CHARS
from gateway.evaluation.suite.requests import OWN_METADATA
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient

_OF_THE_FIRST_TIME = ("request_id", "session_id", "trace_id", "background", "keep_request", "metadata", "replay")


@dataclass(slots=True)
class Recorded:
    """Cases as JSON values, oldest first, and the number of executions that were skipped."""

    cases: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0


async def read_executions(client: AsyncClient, metadata: Mapping[str, str], session_id: str, limit: int) -> Recorded:
    """Return the cases of the newest matching executions that completed with an answer.

    Three kinds of executions are skipped: executions without a kept request; executions of a conversation, because
    their requests lack its earlier turns; and executions of an evaluation.
    """
    listed = await client.list_executions(
        metadata=metadata, session_id=session_id, state=execution_pb2.LIFECYCLE_STATE_COMPLETE, limit=limit
    )
    recorded = Recorded()
    for entry in reversed(listed):
        execution = await client.get_execution(entry.request_id)
        case = case_of(execution)
        if case is None:
            recorded.skipped += 1
        else:
            recorded.cases.append(case)
    return recorded


def case_of(execution: execution_pb2.Execution) -> dict[str, Any] | None:
    """Return the case of an execution, with its answer as the expected answer, or None if it cannot be a case."""
    if not execution.HasField("request") or execution.session_id or f"{OWN_METADATA}id" in execution.metadata:
        return None
    fields = json_format.MessageToDict(execution.request, preserving_proto_field_name=True)
    for name in _OF_THE_FIRST_TIME:
        fields.pop(name, None)
    answer = answer_of_response(execution.response)
    expected: Any = answer.text
    if execution.response.structured_output_json or execution.response.decisions:
        expected = answer.value
    case = {
        "name": _name_of(execution.request_id),
        "input": _input_of(execution.request),
        "request": fields,
        "tools": [_call_of(call) for call in answer.tools],
    }
    if expected is not MISSING:
        case["expected"] = expected
    return case


def _call_of(call: Any) -> dict[str, Any]:
    if isinstance(call.arguments, dict):
        return {"name": call.name, "arguments": call.arguments}
    return {"name": call.name}


def _name_of(request_id: str) -> str:
    if len(request_id) <= MAX_NAME_CHARS:
        return request_id
    return hashlib.sha256(request_id.encode()).hexdigest()[:MAX_NAME_CHARS]


def _input_of(request: execution_pb2.SystemRequest) -> str:
    texts = [message.content for message in request.messages if message.role == message_pb2.ROLE_USER]
    return next(reversed(texts), request.text_prompt)
