"""Implementations of the step kinds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PermissionDenied, PreconditionFailed, failure_of
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.app.effects.enforcing import enforced
from services.orchestrator.app.effects.guarding.calls import NO_ARGUMENTS, check_arguments, check_chunks
from services.orchestrator.app.effects.plan_steps.infer import run_infer
from services.orchestrator.app.effects.plan_steps.scope import PlanScope, StepAttempt, StepDone, StepFailedError
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.tools.calling import INTERRUPTED, authorized_call, run_call, settle
from services.orchestrator.app.effects.tools.clearing import Authorization
from services.orchestrator.app.effects.waiting import ended_wait, wait_expiry
from services.orchestrator.app.services import Rerank, Retrieve
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import CallProgress
from services.orchestrator.core.execution.wait import MAX_REASON_CHARS, TIMED_OUT_JSON, Decision, Wait, WaitKind
from services.orchestrator.core.model.plan import MAX_STEP_TIMEOUT_S, Proposal, StepKind, Value, ValueKind
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.core.plans.ranking import ranking_options
from services.orchestrator.core.plans.step_input import arguments_of, result_value, text_of, value_of
from services.orchestrator.core.plans.step_rules import RETRIEVER_OF, RETRIEVERS, read_time
from services.orchestrator.core.turn.answering import Enforce
from services.orchestrator.ports.services import CustomStep, Ranking

_POSITION = "0"  # A step makes only one call.
_NOT_SATISFIED = "step {!r} passes on an output that does not satisfy its contract: strict_validation is off"


async def run_attempt(attempt: StepAttempt) -> StepDone:
    """Run a step with the implementation of its kind. Raises StepFailedError or PaganticError if it fails."""
    custom = attempt.plan.scope.services.custom_steps.get(attempt.step.kind)
    if custom is not None:
        return await _run_custom(attempt, custom)
    return await _RUN[StepKind(attempt.step.kind)](attempt)


async def _run_custom(attempt: StepAttempt, custom: CustomStep) -> StepDone:
    step = attempt.step
    values = [_value_of(attempt)]
    if step.input is None and len(attempt.inputs) > 1:
        values = list(attempt.inputs.values())
    made: object = await custom("\n\n".join(text_of(value) for value in values), step.parameters)
    if not isinstance(made, str):
        raise PreconditionFailed(f"steps of kind {step.kind!r} must return text, not {type(made).__name__}")
    return StepDone(Value(ValueKind.TEXT, text=made))


def _value_of(attempt: StepAttempt) -> Value:
    return value_of(attempt.step, attempt.plan.request, attempt.inputs)


async def _run_tool(attempt: StepAttempt) -> StepDone:
    step = attempt.step
    arguments = arguments_of(step, _value_of(attempt))
    if arguments is None:
        raise InvalidRequest(
            f"step {step.name!r} works on text that is not a JSON object: name the `argument` that takes it",
            code=ErrorCode.TOOL_INVALID_ARGUMENTS,
        )
    record = await _call(attempt, str(step.parameters["tool"]), arguments)
    if record.failure is not None:
        raise StepFailedError(record.failure)
    return StepDone(result_value(record.id, record.name, record.result))


async def _call(attempt: StepAttempt, tool: str, arguments: str) -> ToolCallRecord:
    """Make the step's call, unless it ended or may have run before an interruption."""
    plan, scope = attempt.plan, attempt.scope()
    before = scope.calls if attempt.is_first else CallProgress()
    settled = await _settled(before, ToolCall("", tool, arguments), plan, scope)
    if settled is not None:
        call = ToolCall(settled.id, tool, arguments)
        return await run_call(plan.request, _POSITION, Authorization(call, recorded=settled), plan.tools, scope)
    is_idempotent = tool in plan.tools and plan.tools[tool].idempotent
    ended = before.records[-1:]
    if ended and not (ended[0].is_error and is_idempotent):
        return ended[0]
    number = sum(1 for entry in plan.progress.began if entry.path == attempt.path) + 1
    call = ToolCall(f"{attempt.step.name}-{number}", tool, arguments)
    try:
        checked = await check_arguments(call, [GuardStage.TOOL_ARGUMENTS], plan.request, scope)
    except PermissionDenied as error:
        call = replace(call, arguments_json=NO_ARGUMENTS)
        return await run_call(plan.request, _POSITION, Authorization(call, refusal=error.failure), plan.tools, scope)
    call = replace(call, arguments_json=checked.texts[0])
    cleared = await authorized_call(plan.request, call, plan.tools, plan.surroundings, scope)
    return await run_call(plan.request, _POSITION, replace(cleared, warnings=checked.warnings), plan.tools, scope)


async def _settled(before: CallProgress, call: ToolCall, plan: PlanScope, scope: RunScope) -> ToolCallRecord | None:
    """Return the record of a call that may have run before an interruption, or None if the call may be made.

    Also returns None if a replay has the result of the call.
    """
    lost = before.lost_call(plan.tools)
    if lost is None or scope.recorded_call(replace(call, id=lost.call_id)) is not None:
        return None
    return await settle(replace(call, id=lost.call_id), lost.effect_id, INTERRUPTED, scope)


async def _run_validate(attempt: StepAttempt) -> StepDone:
    step, value = attempt.step, _value_of(attempt)
    request = replace(attempt, step=replace(step, input=value), inputs={}).request
    enforcement = await enforced(request, Enforce(value.text, is_decoder_enforced=False), attempt.scope(), step.name)
    checked = replace(value, text=enforcement.output)
    if enforcement.valid:
        return StepDone(checked, enforcement.judge_usage, enforcement)
    if step.output.strict_validation:
        failure = enforcement.failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed")
        raise StepFailedError(replace(failure, retryable=False), enforcement.judge_usage)
    warning = ResponseWarning("output_invalid", _NOT_SATISFIED.format(step.name))
    return StepDone(checked, enforcement.judge_usage, enforcement, (warning,))


async def _run_retrieve(attempt: StepAttempt) -> StepDone:
    scope, parameters = attempt.scope(), attempt.step.parameters
    started_s = scope.clock.monotonic_s()
    policy = ContextPolicy(
        retriever=RETRIEVER_OF[parameters.get("retriever", RETRIEVERS[0])],
        collection=str(parameters["collection"]),
        max_chunks=parameters.get("max_chunks", 0),
        min_score=parameters.get("min_score"),
    )
    chunks = await scope.services.do(Retrieve(_value_of(attempt).text, policy))
    chunks, warnings = await check_chunks(chunks, attempt.plan.request, scope)
    await scope.recorder.emit(
        events.ContextRetrieved(policy.collection, len(chunks), 0),
        duration_s=scope.clock.monotonic_s() - started_s,
        caused_by=attempt.step.name,
    )
    return StepDone(Value(ValueKind.CONTEXT, chunks=chunks), warnings=warnings)


async def _run_rerank(attempt: StepAttempt) -> StepDone:
    parameters, value = attempt.step.parameters, _value_of(attempt)
    query = str(parameters.get("query") or last_user_text(attempt.plan.request, ()))
    ranking = Ranking(
        str(parameters.get("scorer", "")),
        parameters.get("min_score"),
        parameters.get("top_k", 0),
        ranking_options(parameters),
    )
    chunks = value.chunks or _as_chunks(value.proposals)
    ranked = await attempt.plan.scope.services.do(Rerank(query, chunks, ranking))
    if value.kind is ValueKind.CONTEXT:
        return StepDone(replace(value, chunks=ranked))
    by_id = {chunk.id: proposal for chunk, proposal in zip(chunks, value.proposals, strict=True)}
    return StepDone(replace(value, proposals=tuple(_rescored(by_id[chunk.id], chunk) for chunk in ranked)))


async def _run_wait(attempt: StepAttempt) -> StepDone:
    wait = await ended_wait(attempt.plan.request.key, _wait_of(attempt), attempt.scope())
    if wait.kind is WaitKind.TIMER:
        return StepDone(Value(ValueKind.RAW_JSON, text=dump_json({"at": wait.expires_at.isoformat()})))
    if wait.resolution is None or wait.resolution.decision is Decision.EXPIRED:
        return StepDone(Value(ValueKind.RAW_JSON, text=TIMED_OUT_JSON))
    return StepDone(Value(ValueKind.RAW_JSON, text=wait.resolution.payload_json))


def _wait_of(attempt: StepAttempt) -> Wait:
    """Return the wait of a step, which begins now. Raises InvalidRequest if its time is too late."""
    scope, parameters = attempt.scope(), attempt.step.parameters
    now = scope.clock.now()
    signal, schema = parameters.get("signal", ""), parameters.get("payload_schema")
    duration_s = parameters.get("timeout_s") if signal else parameters.get("duration_s")
    if duration_s is not None:
        expires_at = now + timedelta(seconds=duration_s)
    else:
        expires_at = max(now, read_time(parameters.get("until", "")) or wait_expiry(scope))
    if expires_at > now + timedelta(seconds=MAX_STEP_TIMEOUT_S):
        raise InvalidRequest(
            f"step {attempt.step.name!r} waits until {expires_at}: at most {MAX_STEP_TIMEOUT_S / 86_400:g} days"
        )
    return Wait(
        attempt.plan.request.request_id,
        attempt.path,
        WaitKind.SIGNAL if signal else WaitKind.TIMER,
        began_at=now,
        expires_at=expires_at,
        name=signal,
        reason=parameters.get("reason", "")[:MAX_REASON_CHARS],
        schema_json="" if schema is None else dump_json(schema),
    )


def _rescored(proposal: Proposal, chunk: Chunk) -> Proposal:
    return replace(proposal, score=chunk.score, score_kind=chunk.score_kind, metadata_json=chunk.metadata_json)


def _as_chunks(proposals: tuple[Proposal, ...]) -> tuple[Chunk, ...]:
    return tuple(
        Chunk(
            str(index), proposal.content, proposal.source, proposal.score, proposal.score_kind, proposal.metadata_json
        )
        for index, proposal in enumerate(proposals)
    )


_RUN: Mapping[StepKind, Callable[[StepAttempt], Awaitable[StepDone]]] = MappingProxyType(
    {
        StepKind.INFER: run_infer,
        StepKind.TOOL: _run_tool,
        StepKind.VALIDATE: _run_validate,
        StepKind.RETRIEVE: _run_retrieve,
        StepKind.RERANK: _run_rerank,
        StepKind.WAIT: _run_wait,
    }
)
