"""Converts between Event and ExecutionEvent.

One table maps the type of a payload to its encoder, and another maps a field to its decoder. Text deltas are not
stored, so they have no decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from pagantic.common.v1 import correlation_pb2, message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.codec.errors import (
    error_code_from_proto,
    error_code_to_proto,
    failure_from_proto,
    failure_to_proto,
)
from pagantic_common.codec.fields import EnumCodec, decode_optional, encode_optional, optional
from pagantic_common.codec.messages import (
    duration_from_proto,
    duration_to_proto,
    timestamp_to_proto,
    tool_progress_to_proto,
)
from pagantic_common.codec.validation import (
    stage_from_proto,
    stage_report_from_proto,
    stage_report_to_proto,
    stage_to_proto,
)
from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.convert.inference import finish_reason_from_proto, finish_reason_to_proto
from services.orchestrator.convert.response import (
    response_from_proto,
    response_to_proto,
    state_from_proto,
    state_to_proto,
    variant_from_proto,
    variant_to_proto,
)
from services.orchestrator.convert.wait import approval_from_proto, approval_to_proto, wait_from_proto, wait_to_proto
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import Event, GuardActed, Payload
from services.orchestrator.core.guards.rules import GuardOutcome, GuardReport
from services.orchestrator.core.turn.run import State, Transition

_PURPOSES = EnumCodec(
    event_pb2.InferencePurpose, events.InferencePurpose, "INFERENCE_PURPOSE_", unknown=events.InferencePurpose.ANSWER
)
_GUARD_STAGES = EnumCodec(event_pb2.GuardStage, GuardStage, "GUARD_STAGE_", unknown=GuardStage.INPUT)
_GUARD_OUTCOMES = EnumCodec(event_pb2.GuardOutcome, GuardOutcome, "GUARD_OUTCOME_", unknown=GuardOutcome.BLOCKED)


def encode_payload(payload: Payload) -> dict[str, Any]:
    """Return the name and the value of the field that contains a payload."""
    field, encode = ENCODERS[type(payload)]
    return {field: encode(payload)}


def decode_payload(encoded: event_pb2.ExecutionEvent) -> Payload:
    """Decode the payload of a stored event.

    Raises ValueError if this version does not store this kind of event.
    """
    field = encoded.WhichOneof("event")
    if field is None or field not in DECODERS:
        raise ValueError(f"an event of kind {field!r} is not one that this version stores")
    return DECODERS[field](getattr(encoded, field))


def _encode_transition(moved: Transition) -> event_pb2.LifecycleTransition:
    return event_pb2.LifecycleTransition(
        from_state=state_to_proto(moved.source),
        to_state=state_to_proto(moved.target),
        attempt=moved.attempt,
        reason=moved.reason,
    )


def _decode_transition(moved: event_pb2.LifecycleTransition) -> Transition:
    target = state_from_proto(moved.to_state) or State.ERROR
    return Transition(state_from_proto(moved.from_state), target, moved.attempt, moved.reason)


def _encode_inference_start(start: events.InferenceStart) -> event_pb2.InferenceStart:
    return event_pb2.InferenceStart(
        message_count=start.message_count,
        tool_defs_count=start.tool_defs_count,
        schema_present=start.schema_present,
        grammar_present=start.grammar_present,
        temperature=start.temperature,
        purpose=_PURPOSES.to_proto(start.purpose),
    )


def _decode_inference_start(start: event_pb2.InferenceStart) -> events.InferenceStart:
    return events.InferenceStart(
        message_count=start.message_count,
        tool_defs_count=start.tool_defs_count,
        schema_present=start.schema_present,
        grammar_present=start.grammar_present,
        temperature=optional(start, "temperature"),
        purpose=_PURPOSES.from_proto(start.purpose),
    )


def _encode_inference_end(end: events.InferenceEnd) -> event_pb2.InferenceEnd:
    return event_pb2.InferenceEnd(
        tokens_in=end.tokens_in,
        tokens_out=end.tokens_out,
        finish_reason=finish_reason_to_proto(end.finish_reason),
        tool_call_count=end.tool_call_count,
        model=end.model,
        seed=end.seed,
        cached_tokens=end.cached_tokens,
    )


def _decode_inference_end(end: event_pb2.InferenceEnd) -> events.InferenceEnd:
    return events.InferenceEnd(
        tokens_in=end.tokens_in,
        tokens_out=end.tokens_out,
        finish_reason=finish_reason_from_proto(end.finish_reason),
        tool_call_count=end.tool_call_count,
        model=end.model,
        seed=optional(end, "seed"),
        cached_tokens=end.cached_tokens,
    )


def _encode_tool_start(start: events.ToolStart) -> event_pb2.ToolStart:
    return event_pb2.ToolStart(tool_name=start.tool_name, tool_call_id=start.tool_call_id, args_hash=start.args_hash)


def _decode_tool_start(start: event_pb2.ToolStart) -> events.ToolStart:
    return events.ToolStart(start.tool_name, start.tool_call_id, start.args_hash)


def _encode_tool_end(end: events.ToolEnd) -> event_pb2.ToolEnd:
    return event_pb2.ToolEnd(
        tool_name=end.tool_name,
        tool_call_id=end.tool_call_id,
        args_hash=end.args_hash,
        success=end.success,
        error_code=error_code_to_proto(end.error_code),
    )


def _decode_tool_end(end: event_pb2.ToolEnd) -> events.ToolEnd:
    return events.ToolEnd(
        tool_name=end.tool_name,
        tool_call_id=end.tool_call_id,
        args_hash=end.args_hash,
        success=end.success,
        error_code=error_code_from_proto(end.error_code),
    )


def _encode_requested(requested: events.ApprovalRequested) -> event_pb2.ApprovalRequested:
    return event_pb2.ApprovalRequested(approval=approval_to_proto(requested.approval))


def _decode_requested(requested: event_pb2.ApprovalRequested) -> events.ApprovalRequested:
    return events.ApprovalRequested(approval_from_proto(requested.approval))


def _encode_resolved(resolved: events.ApprovalResolved) -> event_pb2.ApprovalResolved:
    return event_pb2.ApprovalResolved(approval=approval_to_proto(resolved.approval))


def _decode_resolved(resolved: event_pb2.ApprovalResolved) -> events.ApprovalResolved:
    return events.ApprovalResolved(approval_from_proto(resolved.approval))


def _encode_wait_began(began: events.WaitBegan) -> event_pb2.WaitBegan:
    return event_pb2.WaitBegan(wait=wait_to_proto(began.wait))


def _decode_wait_began(began: event_pb2.WaitBegan) -> events.WaitBegan:
    return events.WaitBegan(wait_from_proto(began.wait))


def _encode_wait_ended(ended: events.WaitEnded) -> event_pb2.WaitEnded:
    return event_pb2.WaitEnded(wait=wait_to_proto(ended.wait))


def _decode_wait_ended(ended: event_pb2.WaitEnded) -> events.WaitEnded:
    return events.WaitEnded(wait_from_proto(ended.wait))


def _encode_dropped(dropped: events.SignalDropped) -> event_pb2.SignalDropped:
    return event_pb2.SignalDropped(name=dropped.name, signal_id=dropped.signal_id, reason=dropped.reason)


def _decode_dropped(dropped: event_pb2.SignalDropped) -> events.SignalDropped:
    return events.SignalDropped(dropped.name, dropped.signal_id, dropped.reason)


def _encode_retrieved(found: events.ContextRetrieved) -> event_pb2.ContextRetrieved:
    return event_pb2.ContextRetrieved(
        collection=found.collection,
        chunk_count=found.chunk_count,
        token_count=found.token_count,
        more_query_count=found.more_query_count,
    )


def _decode_retrieved(found: event_pb2.ContextRetrieved) -> events.ContextRetrieved:
    return events.ContextRetrieved(found.collection, found.chunk_count, found.token_count, found.more_query_count)


def _encode_weighed(weighed: events.ContextWeighed) -> event_pb2.ContextWeighed:
    return event_pb2.ContextWeighed(
        probability=weighed.probability,
        log_odds=weighed.log_odds,
        min_probability=weighed.min_probability,
        tokens_in=weighed.tokens_in,
    )


def _decode_weighed(weighed: event_pb2.ContextWeighed) -> events.ContextWeighed:
    return events.ContextWeighed(
        min_probability=weighed.min_probability,
        probability=optional(weighed, "probability"),
        log_odds=optional(weighed, "log_odds"),
        tokens_in=weighed.tokens_in,
    )


def _encode_repair(applied: events.RepairApplied) -> event_pb2.RepairApplied:
    return event_pb2.RepairApplied(stage=stage_to_proto(applied.stage), repairs=applied.repairs)


def _decode_repair(applied: event_pb2.RepairApplied) -> events.RepairApplied:
    return events.RepairApplied(stage_from_proto(applied.stage), tuple(applied.repairs))


def _encode_stage(stage: events.ValidationStage) -> event_pb2.ValidationStage:
    return event_pb2.ValidationStage(report=stage_report_to_proto(stage.report))


def _decode_stage(stage: event_pb2.ValidationStage) -> events.ValidationStage:
    return events.ValidationStage(stage_report_from_proto(stage.report))


def _encode_step_start(start: events.StepStart) -> event_pb2.StepStart:
    return event_pb2.StepStart(name=start.name, kind=start.kind)


def _decode_step_start(start: event_pb2.StepStart) -> events.StepStart:
    return events.StepStart(start.name, start.kind)


def _encode_step_end(end: events.StepEnd) -> event_pb2.StepEnd:
    return event_pb2.StepEnd(name=end.name, kind=end.kind, success=end.success)


def _decode_step_end(end: event_pb2.StepEnd) -> events.StepEnd:
    return events.StepEnd(end.name, end.kind, end.success)


def _encode_recorded(recorded: events.StepRecorded) -> event_pb2.StepRecorded:
    return event_pb2.StepRecorded(name=recorded.name)


def _decode_recorded(recorded: event_pb2.StepRecorded) -> events.StepRecorded:
    return events.StepRecorded(recorded.name)


def _encode_vote(vote: events.VoteCast) -> event_pb2.VoteCast:
    return event_pb2.VoteCast(replica_index=vote.replica_index, value_hash=vote.value_hash, abstained=vote.is_abstained)


def _decode_vote(vote: event_pb2.VoteCast) -> events.VoteCast:
    return events.VoteCast(vote.replica_index, vote.value_hash, vote.abstained)


def _encode_content(delta: events.ContentDelta) -> event_pb2.ContentDelta:
    return event_pb2.ContentDelta(text=delta.text)


def _encode_reasoning(delta: events.ReasoningDelta) -> event_pb2.ReasoningDelta:
    return event_pb2.ReasoningDelta(text=delta.text)


def _encode_tool_call(delta: events.ToolCallDelta) -> generation_pb2.ToolCallDelta:
    piece = delta.piece
    return generation_pb2.ToolCallDelta(
        index=piece.index, id=piece.id, name=piece.name, arguments_json=piece.arguments_json
    )


def _encode_progress(progressed: events.ToolProgressed) -> message_pb2.ToolProgress:
    return tool_progress_to_proto(progressed.progress)


def _encode_continued(continued: events.InferenceContinued) -> event_pb2.InferenceContinued:
    return event_pb2.InferenceContinued(tokens=continued.tokens)


def _decode_continued(continued: event_pb2.InferenceContinued) -> events.InferenceContinued:
    return events.InferenceContinued(continued.tokens)


def _encode_discarded(discarded: events.AttemptDiscarded) -> event_pb2.AttemptDiscarded:
    return event_pb2.AttemptDiscarded(attempt=discarded.attempt, reason=discarded.reason)


def _decode_discarded(discarded: event_pb2.AttemptDiscarded) -> events.AttemptDiscarded:
    return events.AttemptDiscarded(discarded.attempt, discarded.reason)


def _encode_resumed(resumed: events.Resumed) -> event_pb2.Resumed:
    return event_pb2.Resumed(completed_steps=resumed.completed_steps)


def _decode_resumed(resumed: event_pb2.Resumed) -> events.Resumed:
    return events.Resumed(resumed.completed_steps)


def _encode_parked(parked: events.Parked) -> event_pb2.Parked:
    return event_pb2.Parked(wakes_at=timestamp_to_proto(parked.wakes_at))


def _decode_parked(parked: event_pb2.Parked) -> events.Parked:
    return events.Parked(parked.wakes_at.ToDatetime(UTC))


def _encode_woken(_woken: events.Woken) -> event_pb2.Woken:
    return event_pb2.Woken()


def _decode_woken(_woken: event_pb2.Woken) -> events.Woken:
    return events.Woken()


def _encode_completed(completed: events.Completed) -> event_pb2.Completed:
    return event_pb2.Completed(response=response_to_proto(completed.response))


def _decode_completed(completed: event_pb2.Completed) -> events.Completed:
    return events.Completed(response_from_proto(completed.response))


def guard_acted_to_proto(acted: GuardActed) -> event_pb2.GuardActed:
    """Encode a guard's report."""
    report = acted.report
    return event_pb2.GuardActed(
        guard=report.guard,
        stage=_GUARD_STAGES.to_proto(report.stage),
        outcome=_GUARD_OUTCOMES.to_proto(report.outcome),
        finding_count=report.findings,
        kinds=report.kinds,
    )


def guard_acted_from_proto(acted: event_pb2.GuardActed) -> GuardActed:
    """Decode a guard's report."""
    return GuardActed(
        GuardReport(
            acted.guard,
            _GUARD_STAGES.from_proto(acted.stage),
            _GUARD_OUTCOMES.from_proto(acted.outcome),
            acted.finding_count,
            tuple(acted.kinds),
        )
    )


ENCODERS: Mapping[type[Payload], tuple[str, Callable[[Any], Message]]] = MappingProxyType(
    {
        Transition: ("transition", _encode_transition),
        events.InferenceStart: ("inference_start", _encode_inference_start),
        events.InferenceEnd: ("inference_end", _encode_inference_end),
        events.ToolStart: ("tool_start", _encode_tool_start),
        events.ToolEnd: ("tool_end", _encode_tool_end),
        events.ApprovalRequested: ("approval_requested", _encode_requested),
        events.ApprovalResolved: ("approval_resolved", _encode_resolved),
        events.WaitBegan: ("wait_began", _encode_wait_began),
        events.WaitEnded: ("wait_ended", _encode_wait_ended),
        events.SignalDropped: ("signal_dropped", _encode_dropped),
        events.ContextRetrieved: ("context_retrieved", _encode_retrieved),
        events.ContextWeighed: ("context_weighed", _encode_weighed),
        events.RepairApplied: ("repair_applied", _encode_repair),
        events.ValidationStage: ("validation_stage", _encode_stage),
        events.StepStart: ("step_start", _encode_step_start),
        events.StepEnd: ("step_end", _encode_step_end),
        events.StepRecorded: ("step_recorded", _encode_recorded),
        events.VoteCast: ("vote_cast", _encode_vote),
        events.ContentDelta: ("content_delta", _encode_content),
        events.ReasoningDelta: ("reasoning_delta", _encode_reasoning),
        events.ToolCallDelta: ("tool_call_delta", _encode_tool_call),
        events.ToolProgressed: ("tool_progress", _encode_progress),
        events.GuardActed: ("guard_acted", guard_acted_to_proto),
        events.VariantAssigned: ("variant_assigned", lambda assigned: variant_to_proto(assigned.variant)),
        events.InferenceContinued: ("inference_continued", _encode_continued),
        events.AttemptDiscarded: ("attempt_discarded", _encode_discarded),
        events.Resumed: ("resumed", _encode_resumed),
        events.Parked: ("parked", _encode_parked),
        events.Woken: ("woken", _encode_woken),
        events.Completed: ("completed", _encode_completed),
    }
)
DECODERS: Mapping[str, Callable[[Any], Payload]] = MappingProxyType(
    {
        "transition": _decode_transition,
        "inference_start": _decode_inference_start,
        "inference_end": _decode_inference_end,
        "tool_start": _decode_tool_start,
        "tool_end": _decode_tool_end,
        "approval_requested": _decode_requested,
        "approval_resolved": _decode_resolved,
        "wait_began": _decode_wait_began,
        "wait_ended": _decode_wait_ended,
        "signal_dropped": _decode_dropped,
        "context_retrieved": _decode_retrieved,
        "context_weighed": _decode_weighed,
        "repair_applied": _decode_repair,
        "validation_stage": _decode_stage,
        "step_start": _decode_step_start,
        "step_end": _decode_step_end,
        "step_recorded": _decode_recorded,
        "vote_cast": _decode_vote,
        "guard_acted": guard_acted_from_proto,
        "variant_assigned": lambda variant: events.VariantAssigned(variant_from_proto(variant)),
        "inference_continued": _decode_continued,
        "attempt_discarded": _decode_discarded,
        "resumed": _decode_resumed,
        "parked": _decode_parked,
        "woken": _decode_woken,
        "completed": _decode_completed,
    }
)


def event_to_proto(event: Event) -> event_pb2.ExecutionEvent:
    """Encode an event."""
    correlation = event.correlation
    return event_pb2.ExecutionEvent(
        correlation=correlation_pb2.CorrelationContext(
            request_id=correlation.request_id,
            session_id=correlation.session_id,
            trace_id=correlation.trace_id,
            span_id=correlation.span_id,
            parent_span_id=correlation.parent_span_id,
            caused_by=correlation.caused_by,
        ),
        sequence=event.sequence,
        timestamp=timestamp_to_proto(event.timestamp),
        layer=event.layer,
        action=event.action,
        attempt=event.attempt,
        tool_call_id=event.tool_call_id,
        step_name=correlation.step_name,
        duration=encode_optional(event.duration_s, duration_to_proto),
        error=encode_optional(event.failure, failure_to_proto),
        **encode_payload(event.payload),
    )


def event_from_proto(encoded: event_pb2.ExecutionEvent) -> Event:
    """Decode a stored event."""
    correlation = encoded.correlation
    return Event(
        correlation=CorrelationContext(
            request_id=correlation.request_id,
            session_id=correlation.session_id,
            trace_id=correlation.trace_id,
            span_id=correlation.span_id,
            parent_span_id=correlation.parent_span_id,
            step_name=encoded.step_name,
            caused_by=correlation.caused_by,
        ),
        sequence=encoded.sequence,
        timestamp=encoded.timestamp.ToDatetime(UTC),
        layer=encoded.layer,
        action=encoded.action,
        attempt=encoded.attempt,
        payload=decode_payload(encoded),
        duration_s=decode_optional(encoded, "duration", duration_from_proto),
        failure=decode_optional(encoded, "error", failure_from_proto),
        tool_call_id=encoded.tool_call_id,
    )
