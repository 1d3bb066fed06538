"""Describes events, each on one line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import approval_pb2, event_pb2, wait_pb2
from pagantic_common.client.descriptions import (
    count_of,
    describe_usage,
    error_code_name,
    finish_reason_name,
    state_name,
)
from pagantic_common.client.hints import variant_text
from pagantic_common.codec.fields import name_of

HASH_DIGITS = 8


def describe_event(event: event_pb2.ExecutionEvent) -> str:
    """Return the details of an event on one line, or an empty string if the event is from a newer version."""
    kind = event.WhichOneof("event")
    if kind is None:
        return ""
    return _DESCRIPTIONS[kind](getattr(event, kind))


def _describe_transition(transition: event_pb2.LifecycleTransition) -> str:
    described = state_name(transition.to_state)
    source = state_name(transition.from_state)
    if source != "UNSPECIFIED":
        described = f"{source} -> {described}"
    if transition.reason:
        described += f": {transition.reason}"
    return described


def _describe_inference_start(start: event_pb2.InferenceStart) -> str:
    parts = [count_of(start.message_count, "message"), count_of(start.tool_defs_count, "tool")]
    if start.schema_present:
        parts.append("schema")
    if start.grammar_present:
        parts.append("grammar")
    return ", ".join(parts)


def _describe_inference_end(end: event_pb2.InferenceEnd) -> str:
    described = f"{end.tokens_in} in, {end.tokens_out} out, {finish_reason_name(end.finish_reason)}"
    if end.model:  # A route has several models; this event names the model that answered.
        described += f", by {end.model}"
    return described


def _describe_tool_start(start: event_pb2.ToolStart) -> str:
    return f"{start.tool_name} ({start.tool_call_id})"


def _describe_tool_call(call: generation_pb2.ToolCallDelta) -> str:
    return f"{call.name}{call.arguments_json}"


def _describe_progress(progress: message_pb2.ToolProgress) -> str:
    described = f"{progress.progress:g}"
    if progress.HasField("total"):
        described += f" of {progress.total:g}"
    if progress.message:
        described += f": {progress.message}"
    return described


def _describe_tool_end(end: event_pb2.ToolEnd) -> str:
    if end.success:
        return f"{end.tool_name} ok"
    return f"{end.tool_name} {error_code_name(end.error_code)}"


def _describe_requested(requested: event_pb2.ApprovalRequested) -> str:
    return f"{requested.approval.tool_name}: {requested.approval.reason}"


def _describe_resolved(resolved: event_pb2.ApprovalResolved) -> str:
    approval, resolution = resolved.approval, resolved.approval.resolution
    decision = name_of(approval_pb2.ApprovalDecision, resolution.decision, "APPROVAL_DECISION_").lower()
    by = f" by {resolution.subject}" if resolution.subject else ""
    reason = f": {resolution.reason}" if resolution.reason else ""
    return f"{approval.tool_name} {decision}{by}{reason}"


def _describe_wait(began: event_pb2.WaitBegan) -> str:
    wait = began.wait
    until = f"until {wait.expires_at.ToDatetime(UTC):%Y-%m-%d %H:%M} UTC"
    if wait.kind == wait_pb2.WAIT_KIND_QUESTION:
        return f"{wait.wait_id}: {wait.reason}"
    return f"{wait.wait_id}: signal {wait.name}, {until}" if wait.name else f"{wait.wait_id}: {until}"


def _describe_wait_end(ended: event_pb2.WaitEnded) -> str:
    wait, resolution = ended.wait, ended.wait.resolution
    if not wait.name:
        return f"{wait.wait_id}: the time has come"
    if resolution.expired:
        return f"{wait.wait_id}: no signal {wait.name} came in time"
    by = f" by {resolution.subject}" if resolution.subject else ""
    return f"{wait.wait_id}: signal {wait.name}{by}"


def _describe_dropped(dropped: event_pb2.SignalDropped) -> str:
    return f"signal {dropped.name} ({dropped.signal_id}): {dropped.reason}"


def _describe_retrieval(retrieved: event_pb2.ContextRetrieved) -> str:
    described = f"{retrieved.collection}: {count_of(retrieved.chunk_count, 'chunk')}"
    if retrieved.token_count:  # The retrieve step of a plan does not count tokens.
        described += f", {count_of(retrieved.token_count, 'token')}"
    if retrieved.more_query_count:
        described += f", queries by the model: {retrieved.more_query_count}"
    return described


def _describe_weighed(weighed: event_pb2.ContextWeighed) -> str:
    if not weighed.HasField("probability"):
        return "no probability of an answer"
    return f"an answer with probability {weighed.probability:.3f}, at least {weighed.min_probability:g} is asked for"


def _describe_repair(repair: event_pb2.RepairApplied) -> str:
    return f"{_stage_name(repair.stage)}: {'; '.join(repair.repairs)}"


def _describe_stage(validated: event_pb2.ValidationStage) -> str:
    report = validated.report
    outcome = name_of(contract_pb2.StageOutcome, report.outcome, "STAGE_OUTCOME_").lower()
    described = f"{_stage_name(report.stage)} {outcome}"
    if reasons := [*report.reasons, *(violation.message for violation in report.violations)]:
        described += f": {'; '.join(reasons)}"
    return described


def _describe_vote(vote: event_pb2.VoteCast) -> str:
    if vote.abstained:
        return f"replica {vote.replica_index} abstains"
    return f"replica {vote.replica_index} votes for value #{vote.value_hash[:HASH_DIGITS]}"


def _describe_step_start(start: event_pb2.StepStart) -> str:
    return f"{start.name} ({start.kind})"


def _describe_step_end(end: event_pb2.StepEnd) -> str:
    if end.success:
        return f"{end.name} ({end.kind}) ok"
    return f"{end.name} ({end.kind}) failed"


def _describe_recorded(recorded: event_pb2.StepRecorded) -> str:
    return f"{recorded.name} from the record"


def _describe_continued(continued: event_pb2.InferenceContinued) -> str:
    return f"another replica continues after {count_of(continued.tokens, 'token')}"


def _describe_guard(acted: event_pb2.GuardActed) -> str:
    stage = name_of(event_pb2.GuardStage, acted.stage, "GUARD_STAGE_").lower().replace("_", " ")
    outcome = name_of(event_pb2.GuardOutcome, acted.outcome, "GUARD_OUTCOME_").lower().replace("_", " ")
    described = f"{acted.guard} {outcome}: {stage}"
    if acted.finding_count:
        described += f", {count_of(acted.finding_count, 'finding')} ({', '.join(acted.kinds)})"
    return described


def _describe_discarded(discarded: event_pb2.AttemptDiscarded) -> str:
    return f"attempt {discarded.attempt}: {discarded.reason}"


def _describe_resumed(resumed: event_pb2.Resumed) -> str:
    return f"{count_of(resumed.completed_steps, 'step')} had ended"


def _describe_parked(parked: event_pb2.Parked) -> str:
    return f"until {parked.wakes_at.ToDatetime(UTC):%Y-%m-%d %H:%M} UTC, a decision or a signal"


def _describe_woken(_woken: event_pb2.Woken) -> str:
    return ""


def _describe_completed(completed: event_pb2.Completed) -> str:
    return describe_usage(completed.response.token_usage)


def _text_of(delta: event_pb2.ContentDelta | event_pb2.ReasoningDelta) -> str:
    return delta.text


def _stage_name(stage: contract_pb2.Stage.ValueType) -> str:
    return name_of(contract_pb2.Stage, stage, "STAGE_").lower()


_DESCRIPTIONS: dict[str, Callable[[Any], str]] = {
    "transition": _describe_transition,
    "inference_start": _describe_inference_start,
    "inference_end": _describe_inference_end,
    "content_delta": _text_of,
    "tool_call_delta": _describe_tool_call,
    "tool_progress": _describe_progress,
    "reasoning_delta": _text_of,
    "tool_start": _describe_tool_start,
    "tool_end": _describe_tool_end,
    "approval_requested": _describe_requested,
    "approval_resolved": _describe_resolved,
    "wait_began": _describe_wait,
    "wait_ended": _describe_wait_end,
    "signal_dropped": _describe_dropped,
    "context_retrieved": _describe_retrieval,
    "context_weighed": _describe_weighed,
    "repair_applied": _describe_repair,
    "validation_stage": _describe_stage,
    "vote_cast": _describe_vote,
    "step_start": _describe_step_start,
    "step_end": _describe_step_end,
    "step_recorded": _describe_recorded,
    "guard_acted": _describe_guard,
    "variant_assigned": variant_text,
    "inference_continued": _describe_continued,
    "attempt_discarded": _describe_discarded,
    "resumed": _describe_resumed,
    "parked": _describe_parked,
    "woken": _describe_woken,
    "completed": _describe_completed,
}
