"""Event <-> ExecutionEvent."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.common.v1 import correlation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.codec.errors import (
    error_code_from_proto,
    error_code_to_proto,
    failure_from_proto,
    failure_to_proto,
)
from pagantic_common.codec.messages import duration_from_proto, duration_to_proto
from pagantic_common.codec.validation import (
    stage_from_proto,
    stage_report_from_proto,
    stage_report_to_proto,
    stage_to_proto,
)
from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.convert.inference import finish_reason_from_proto, finish_reason_to_proto
from services.orchestrator.convert.response import response_from_proto, response_to_proto
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import Event, Payload
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.run import Transition

_STATE_PREFIX = "LIFECYCLE_STATE_"
_PURPOSE_PREFIX = "INFERENCE_PURPOSE_"


def state_to_proto(state: State) -> execution_pb2.LifecycleState.ValueType:
    """Encode a state."""
    return execution_pb2.LifecycleState.Value(_STATE_PREFIX + state.value)


def state_from_proto(value: int) -> State | None:
    """Decode a state; None when it is not set. Raises InvalidRequest for one that is not known."""
    names: dict[int, str] = {number: name for name, number in execution_pb2.LifecycleState.items()}
    name = names.get(value, "").removeprefix(_STATE_PREFIX)
    if value and name not in State.__members__:
        raise InvalidRequest(f"there is no state {value}: use one of {', '.join(_STATE_PREFIX + one for one in State)}")
    return State(name) if value else None


def timestamp_to_proto(moment: datetime) -> Timestamp:
    """Encode a moment."""
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def _purpose_from_proto(value: event_pb2.InferencePurpose.ValueType) -> events.InferencePurpose:
    name = event_pb2.InferencePurpose.Name(value).removeprefix(_PURPOSE_PREFIX)
    return events.InferencePurpose.__members__.get(name, events.InferencePurpose.ANSWER)


def event_to_proto(event: Event) -> event_pb2.ExecutionEvent:
    """Encode an event."""
    correlation = event.correlation
    encoded = event_pb2.ExecutionEvent(
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
    )
    if event.duration_s is not None:
        encoded.duration.CopyFrom(duration_to_proto(event.duration_s))
    if event.failure is not None:
        encoded.error.CopyFrom(failure_to_proto(event.failure))
    _set_payload(encoded, event.payload)
    return encoded


def _set_payload(encoded: event_pb2.ExecutionEvent, payload: Payload) -> None:  # noqa: C901, PLR0912 - an arm for each kind
    match payload:
        case Transition():
            encoded.transition.CopyFrom(
                event_pb2.LifecycleTransition(
                    to_state=state_to_proto(payload.target), attempt=payload.attempt, reason=payload.reason
                )
            )
            if payload.source is not None:
                encoded.transition.from_state = state_to_proto(payload.source)
        case events.InferenceStart():
            encoded.inference_start.CopyFrom(
                event_pb2.InferenceStart(
                    message_count=payload.message_count,
                    tool_defs_count=payload.tool_defs_count,
                    schema_present=payload.schema_present,
                    grammar_present=payload.grammar_present,
                    temperature=payload.temperature,
                    purpose=event_pb2.InferencePurpose.Value(_PURPOSE_PREFIX + payload.purpose),
                )
            )
        case events.InferenceEnd():
            encoded.inference_end.CopyFrom(
                event_pb2.InferenceEnd(
                    tokens_in=payload.tokens_in,
                    tokens_out=payload.tokens_out,
                    finish_reason=finish_reason_to_proto(payload.finish_reason),
                    tool_call_count=payload.tool_call_count,
                    model=payload.model,
                    seed=payload.seed,
                )
            )
        case events.ToolStart():
            encoded.tool_start.CopyFrom(
                event_pb2.ToolStart(
                    tool_name=payload.tool_name, tool_call_id=payload.tool_call_id, args_hash=payload.args_hash
                )
            )
        case events.ToolEnd():
            encoded.tool_end.CopyFrom(
                event_pb2.ToolEnd(
                    tool_name=payload.tool_name,
                    tool_call_id=payload.tool_call_id,
                    args_hash=payload.args_hash,
                    success=payload.success,
                    error_code=error_code_to_proto(payload.error_code),
                )
            )
        case events.ContextRetrieved():
            encoded.context_retrieved.CopyFrom(
                event_pb2.ContextRetrieved(
                    collection=payload.collection, chunk_count=payload.chunk_count, token_count=payload.token_count
                )
            )
        case events.RepairApplied():
            stage = stage_to_proto(payload.stage)
            encoded.repair_applied.CopyFrom(event_pb2.RepairApplied(stage=stage, repairs=payload.repairs))
        case events.ValidationStage():
            encoded.validation_stage.report.CopyFrom(stage_report_to_proto(payload.report))
        case events.StepStart():
            encoded.step_start.CopyFrom(event_pb2.StepStart(name=payload.name, kind=payload.kind))
        case events.StepEnd():
            encoded.step_end.CopyFrom(event_pb2.StepEnd(name=payload.name, kind=payload.kind, success=payload.success))
        case events.VoteCast():
            encoded.vote_cast.CopyFrom(
                event_pb2.VoteCast(
                    replica_index=payload.replica_index, value_hash=payload.value_hash, abstained=payload.is_abstained
                )
            )
        case events.ContentDelta():
            encoded.content_delta.text = payload.text
        case events.ReasoningDelta():
            encoded.reasoning_delta.text = payload.text
        case events.AttemptDiscarded():
            discarded = event_pb2.AttemptDiscarded(attempt=payload.attempt, reason=payload.reason)
            encoded.attempt_discarded.CopyFrom(discarded)
        case events.Resumed():
            encoded.resumed.completed_steps = payload.completed_steps
            encoded.resumed.SetInParent()
        case events.Completed():
            encoded.completed.response.CopyFrom(response_to_proto(payload.response))


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
        payload=_payload_from_proto(encoded),
        duration_s=duration_from_proto(encoded.duration) if encoded.HasField("duration") else None,
        failure=failure_from_proto(encoded.error) if encoded.HasField("error") else None,
        tool_call_id=encoded.tool_call_id,
    )


def _payload_from_proto(encoded: event_pb2.ExecutionEvent) -> Payload:  # noqa: C901, PLR0911, PLR0912 - an arm for each kind
    match encoded.WhichOneof("event"):
        case "transition":
            moved = encoded.transition
            source, target = state_from_proto(moved.from_state), state_from_proto(moved.to_state)
            return Transition(source, target or State.ERROR, moved.attempt, moved.reason)
        case "inference_start":
            start = encoded.inference_start
            return events.InferenceStart(
                message_count=start.message_count,
                tool_defs_count=start.tool_defs_count,
                schema_present=start.schema_present,
                grammar_present=start.grammar_present,
                temperature=start.temperature if start.HasField("temperature") else None,
                purpose=_purpose_from_proto(start.purpose),
            )
        case "inference_end":
            end = encoded.inference_end
            reason = finish_reason_from_proto(end.finish_reason)
            return events.InferenceEnd(
                tokens_in=end.tokens_in,
                tokens_out=end.tokens_out,
                finish_reason=reason,
                tool_call_count=end.tool_call_count,
                model=end.model,
                seed=end.seed if end.HasField("seed") else None,
            )
        case "tool_start":
            tool = encoded.tool_start
            return events.ToolStart(tool.tool_name, tool.tool_call_id, tool.args_hash)
        case "tool_end":
            tool_end = encoded.tool_end
            return events.ToolEnd(
                tool_name=tool_end.tool_name,
                tool_call_id=tool_end.tool_call_id,
                args_hash=tool_end.args_hash,
                success=tool_end.success,
                error_code=error_code_from_proto(tool_end.error_code),
            )
        case "context_retrieved":
            found = encoded.context_retrieved
            return events.ContextRetrieved(found.collection, found.chunk_count, found.token_count)
        case "repair_applied":
            repair = encoded.repair_applied
            stage = stage_from_proto(repair.stage)
            return events.RepairApplied(stage, tuple(repair.repairs))
        case "validation_stage":
            return events.ValidationStage(stage_report_from_proto(encoded.validation_stage.report))
        case "step_start":
            return events.StepStart(encoded.step_start.name, encoded.step_start.kind)
        case "step_end":
            step = encoded.step_end
            return events.StepEnd(step.name, step.kind, step.success)
        case "vote_cast":
            vote = encoded.vote_cast
            return events.VoteCast(vote.replica_index, vote.value_hash, vote.abstained)
        case "attempt_discarded":
            return events.AttemptDiscarded(encoded.attempt_discarded.attempt, encoded.attempt_discarded.reason)
        case "resumed":
            return events.Resumed(encoded.resumed.completed_steps)
        case "completed":
            return events.Completed(response_from_proto(encoded.completed.response))
        case other:
            raise ValueError(f"an event of kind {other!r} is not one that this version stores")
