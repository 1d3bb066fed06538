"""Converts plans, and the inputs and outputs of their steps, to and from proto."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import plan_pb2
from pagantic_common.codec.chunks import chunk_from_proto, chunk_to_proto
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.codec.fields import decode_optional, encode_optional, optional
from pagantic_common.codec.messages import (
    duration_from_proto,
    duration_to_proto,
    message_from_proto,
    message_to_proto,
    usage_from_proto,
    usage_to_proto,
)
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from services.orchestrator.convert.contract import output_from_proto, output_to_proto, retry_from_proto, retry_to_proto
from services.orchestrator.core.model.plan import (
    MAX_STEPS,
    CallResult,
    Plan,
    PlanPolicy,
    PlanTrace,
    Proposal,
    Step,
    StepResult,
    Value,
    ValueKind,
)
from services.orchestrator.core.model.response_warning import ResponseWarning


def plan_from_proto(plan: plan_pb2.ExecutionPlan) -> Plan:
    """Decode a plan. Raises InvalidRequest if the parameters of a step are not a JSON object."""
    trace = PlanTrace(
        planner_id=plan.trace.planner_id or PlanTrace().planner_id,
        rationale=plan.trace.rationale,
        created_at=decode_optional(plan.trace, "created_at", _moment_from_proto),
    )
    return Plan(tuple(_step_from_proto(step) for step in plan.steps), _policy_from_proto(plan.policy), trace)


def plan_to_proto(plan: Plan) -> plan_pb2.ExecutionPlan:
    """Encode a plan in the form of a request's plan."""
    policy = plan_pb2.PlanPolicy(
        max_steps=plan.policy.max_steps,
        allowed_step_kinds=sorted(plan.policy.allowed_kinds or ()),
        require_linear=plan.policy.require_linear,
    )
    if plan.policy.timeout_per_step_s:
        policy.timeout_per_step.CopyFrom(duration_to_proto(plan.policy.timeout_per_step_s))
    trace = plan_pb2.PlanTrace(
        planner_id=plan.trace.planner_id, rationale=plan.trace.rationale, step_count=len(plan.steps)
    )
    if plan.trace.created_at is not None:
        trace.created_at.FromDatetime(plan.trace.created_at)
    return plan_pb2.ExecutionPlan(steps=[_step_to_proto(step) for step in plan.steps], policy=policy, trace=trace)


def _step_to_proto(step: Step) -> plan_pb2.Step:
    encoded = plan_pb2.Step(
        name=step.name,
        kind=step.kind,
        parameters_json=dump_json(dict(step.parameters)),
        depends_on=step.depends_on,
        max_retries=step.max_retries,
        retry=encode_optional(step.retry, retry_to_proto),
    )
    if not step.output.is_empty:
        encoded.output.CopyFrom(output_to_proto(step.output))
    if step.timeout_s:
        encoded.timeout.CopyFrom(duration_to_proto(step.timeout_s))
    if step.input is not None:
        _set_input(encoded.input, step.input)
    return encoded


def result_to_proto(result: StepResult) -> plan_pb2.StepResult:
    """Encode the result of a step."""
    encoded = plan_pb2.StepResult(
        name=result.name,
        kind=result.kind,
        attempts=result.attempts,
        duration=duration_to_proto(result.duration_s),
        error=encode_optional(result.failure, failure_to_proto),
        usage=usage_to_proto(result.usage),
        warnings=[warning_to_proto(warning) for warning in result.warnings],
    )
    if result.output is not None:
        _set_value(encoded.output, result.output)
        encoded.output.usage.CopyFrom(usage_to_proto(result.usage))
    return encoded


def result_from_proto(result: plan_pb2.StepResult) -> StepResult:
    """Decode the result of a step."""
    usage = result.output.usage  # Earlier versions stored the usage in this field.
    if result.HasField("usage"):
        usage = result.usage
    return StepResult(
        name=result.name,
        kind=result.kind,
        output=decode_optional(result, "output", _value_from_proto),
        failure=decode_optional(result, "error", failure_from_proto),
        attempts=result.attempts,
        duration_s=duration_from_proto(result.duration),
        usage=usage_from_proto(usage),
        warnings=tuple(warning_from_proto(warning) for warning in result.warnings),
    )


def warning_to_proto(warning: ResponseWarning) -> error_pb2.Warning:
    """Encode a warning."""
    return error_pb2.Warning(code=warning.code, message=warning.message)


def warning_from_proto(warning: error_pb2.Warning) -> ResponseWarning:
    """Decode a warning."""
    return ResponseWarning(warning.code, warning.message)


def _step_from_proto(step: plan_pb2.Step) -> Step:
    try:
        parameters = parse_json(step.parameters_json or "{}", is_rewritable=True)
    except JsonTextError as error:
        raise InvalidRequest(f"step {step.name[:64]!r}: parameters_json is not JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"step {step.name[:64]!r}: parameters_json is not a JSON object")
    return Step(
        name=step.name,
        kind=step.kind,
        parameters=parameters,
        input=_value_from_proto(step.input),
        depends_on=tuple(dict.fromkeys(step.depends_on)),
        output=output_from_proto(step.output),
        max_retries=optional(step, "max_retries"),
        timeout_s=decode_optional(step, "timeout", duration_from_proto),
        retry=decode_optional(step, "retry", retry_from_proto),
    )


def _moment_from_proto(timestamp: Timestamp) -> datetime:
    try:
        return timestamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest("plan.trace.created_at must be a moment between the years 1 and 9999") from None


def _policy_from_proto(policy: plan_pb2.PlanPolicy) -> PlanPolicy:
    max_steps = MAX_STEPS
    if policy.max_steps > 0:
        max_steps = policy.max_steps
    return PlanPolicy(
        max_steps=max_steps,
        allowed_kinds=frozenset(policy.allowed_step_kinds) or None,
        require_linear=policy.require_linear,
        timeout_per_step_s=decode_optional(policy, "timeout_per_step", duration_from_proto),
    )


def _value_from_proto(value: plan_pb2.StepInput | plan_pb2.StepOutput) -> Value | None:
    kind = value.WhichOneof("value")
    match kind:
        case "messages" if isinstance(value, plan_pb2.StepInput):
            messages = tuple(message_from_proto(message) for message in value.messages.messages)
            decoded_value = Value(ValueKind.MESSAGES, messages=messages)
        case "candidates":
            decoded_value = _candidates_from_proto(value.candidates)
        case "context":
            decoded_value = _context_from_proto(value.context)
        case "tool_results":
            decoded_value = _results_from_proto(value.tool_results)
        case "raw_json":
            decoded_value = Value(ValueKind.RAW_JSON, text=value.raw_json)
        case "text" | "content":
            decoded_value = Value(ValueKind.TEXT, text=str(getattr(value, kind)))
        case _:
            return None
    return decoded_value


def _set_input(encoded: plan_pb2.StepInput, value: Value) -> None:
    if value.kind is ValueKind.MESSAGES:
        encoded.messages.messages.extend(message_to_proto(message) for message in value.messages)
    else:
        _set_value(encoded, value)


def _set_value(encoded: plan_pb2.StepInput | plan_pb2.StepOutput, value: Value) -> None:
    match value.kind:
        case ValueKind.CANDIDATES:
            encoded.candidates.SetInParent()
            for proposal in value.proposals:
                encoded.candidates.candidates.add(
                    content=proposal.content,
                    source=proposal.source,
                    score=proposal.score,
                    score_kind=proposal.score_kind,
                    metadata_json=proposal.metadata_json,
                )
        case ValueKind.CONTEXT:
            encoded.context.SetInParent()
            encoded.context.chunks.extend(chunk_to_proto(chunk) for chunk in value.chunks)
        case ValueKind.TOOL_RESULTS:
            encoded.tool_results.SetInParent()
            for result in value.results:
                encoded.tool_results.tool_results.add(
                    call_id=result.call_id, name=result.name, content=result.content, is_error=result.is_error
                )
        case ValueKind.RAW_JSON:
            encoded.raw_json = value.text
        case _ if isinstance(encoded, plan_pb2.StepInput):
            encoded.text = value.text
        case _:
            encoded.content = value.text


def _candidates_from_proto(candidates: plan_pb2.CandidateList) -> Value:
    proposals = tuple(
        Proposal(candidate.content, candidate.source, candidate.score, candidate.score_kind, candidate.metadata_json)
        for candidate in candidates.candidates
    )
    return Value(ValueKind.CANDIDATES, proposals=proposals)


def _context_from_proto(context: plan_pb2.ContextIR) -> Value:
    return Value(ValueKind.CONTEXT, chunks=tuple(chunk_from_proto(chunk) for chunk in context.chunks))


def _results_from_proto(results: plan_pb2.ToolResultList) -> Value:
    call_results = tuple(
        CallResult(result.call_id, result.name, result.content, result.is_error) for result in results.tool_results
    )
    return Value(ValueKind.TOOL_RESULTS, results=call_results)
