"""Encodes journal records (executions, conversations, usage), callable tools and prompt templates as proto.

Also decodes kept requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagantic.orchestrator.v1 import execution_pb2, session_pb2, usage_total_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.codec.fields import EnumCodec, encode_optional
from pagantic_common.codec.messages import message_to_proto, timestamp_to_proto, tool_definition_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.app.catalog import CallableTool
from services.orchestrator.convert.request import mode_to_proto
from services.orchestrator.convert.response import response_to_proto, state_to_proto
from services.orchestrator.convert.wait import action_to_proto, wait_to_proto
from services.orchestrator.core.execution.wait import Wait
from services.orchestrator.core.model.request import KeptRequest
from services.orchestrator.ports.journal import ExecutionRecord, SessionRecord, UsageKey, UsageTotal
from services.orchestrator.ports.services import ConfiguredTemplate

_USAGE_KEYS = EnumCodec(usage_total_pb2.UsageKey, UsageKey, "USAGE_KEY_", unknown=None)


def record_to_proto(record: ExecutionRecord, waits: Sequence[Wait] = ()) -> execution_pb2.Execution:
    """Encode an execution with its open waits."""
    state = execution_pb2.ExecutionState(
        current=state_to_proto(record.state),
        entered_at=timestamp_to_proto(record.entered_at),
        attempt=record.attempt,
        total_steps=record.total_steps,
        last_error=encode_optional(record.last_failure, failure_to_proto),
        last_step=record.last_step,
        waiting_for=map(wait_to_proto, waits),
    )
    return execution_pb2.Execution(
        request_id=record.request_id,
        session_id=record.session_id,
        trace_id=record.trace_id,
        mode=mode_to_proto(record.mode),
        started_at=timestamp_to_proto(record.started_at),
        state=state,
        response=encode_optional(record.response, response_to_proto),
        interrupted=record.is_interrupted,
        request=_request_of(record.kept),
        metadata=record.kept.metadata if record.kept is not None else None,
        wakes_at=encode_optional(record.wakes_at, timestamp_to_proto),
    )


def _request_of(kept: KeptRequest | None) -> execution_pb2.SystemRequest | None:
    if kept is None or not kept.encoded:
        return None
    return execution_pb2.SystemRequest.FromString(kept.encoded)


def kept_request_from_proto(request: execution_pb2.SystemRequest, request_id: str) -> KeptRequest | None:
    """Return the part of a request to keep under this ID, or None if the request is not to be kept.

    Raises InvalidRequest if the request has metadata but `keep_request` is not set.
    """
    if not request.keep_request:
        if request.metadata:
            raise InvalidRequest("metadata is kept with the request alone: set keep_request, or leave metadata out")
        return None
    metadata = dict(request.metadata)
    kept = execution_pb2.SystemRequest()
    kept.CopyFrom(request)
    kept.request_id = request_id
    kept.ClearField("metadata")
    return KeptRequest(kept.SerializeToString(), metadata)


def session_to_proto(session: SessionRecord) -> session_pb2.Session:
    """Encode a conversation."""
    return session_pb2.Session(
        session_id=session.session_id,
        messages=[message_to_proto(message) for message in session.messages],
        message_count=session.message_count,
        created_at=timestamp_to_proto(session.created_at),
        updated_at=timestamp_to_proto(session.updated_at),
        state_json=session.state,
        first_position=session.first_position,
    )


def usage_keys_from_proto(numbers: Sequence[int]) -> frozenset[UsageKey]:
    """Decode the keys of totals. Raises InvalidRequest if a key is unset or unknown, or if there are more than four."""
    if len(numbers) > len(UsageKey):
        raise InvalidRequest(f"group_by has {len(numbers)} entries: it takes at most {len(UsageKey)}")
    keys = {number: _USAGE_KEYS.from_proto(number) for number in numbers}
    unknown = [number for number, key in keys.items() if key is None]
    if unknown:
        choices = ", ".join(f"USAGE_KEY_{key.name}" for key in UsageKey)
        raise InvalidRequest(f"group_by has {unknown[0]}, which is not a key: use {choices}")
    return frozenset(key for key in keys.values() if key is not None)


def usage_total_to_proto(total: UsageTotal) -> usage_total_pb2.UsageTotal:
    """Encode a usage total."""
    return usage_total_pb2.UsageTotal(
        session_id=total.session_id,
        subject=total.subject,
        model=total.model,
        requests=total.requests,
        prompt_tokens=total.prompt_tokens,
        cached_prompt_tokens=total.cached_prompt_tokens,
        output_tokens=total.output_tokens,
        cost_usd=total.cost_usd,
    )


def callable_tool_to_proto(tool: CallableTool) -> pb.CallableTool:
    """Encode a tool of the deployment."""
    return pb.CallableTool(
        definition=tool_definition_to_proto(tool.offered.definition),
        available=tool.offered.is_available,
        unavailable_reason=tool.offered.unavailable_reason,
        action=action_to_proto(tool.action),
        origin=tool.offered.origin,
    )


def template_to_proto(template: ConfiguredTemplate) -> pb.ConfiguredTemplate:
    """Encode a configured prompt template."""
    return pb.ConfiguredTemplate(name=template.name, variables=template.variables, session_keys=template.session_keys)
