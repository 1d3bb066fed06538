"""Runs an infer step of a plan as a whole turn on a separate machine."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode
from services.orchestrator.app.effects.plan_steps.scope import StepAttempt, StepDone, StepFailedError
from services.orchestrator.app.effects.scope import drive
from services.orchestrator.app.recording.observing import StateSpans
from services.orchestrator.app.recording.recorder import attempt_scope
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import NestedInput
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.plan import Value, ValueKind, retry_of
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.plans.step_input import messages_of
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.ending import Finish
from services.orchestrator.core.turn.run import Outcome

_HINTS = ("max_tokens", "temperature", "top_p", "seed", "model")  # parameters of an infer step that are hints


async def run_infer(attempt: StepAttempt) -> StepDone:
    """Run a turn with tools, the step's contract, repair and retries.

    An interrupted run continues after the last recorded input of its machine.
    """
    step, plan, scope = attempt.step, attempt.plan, attempt.scope()

    async def record(outcome: Outcome, happened: Answer) -> None:
        plan.last_attempts[step.name] = scope.attempt_of(outcome.run)
        nested = [NestedInput(step.name, attempt.run_number, happened)]
        discarded = outcome.discarded
        if discarded is None:
            await scope.recorder.record_step([], nested)
            return
        number = attempt.run_number - 1 + discarded.attempt
        with attempt_scope(number):
            await scope.recorder.record_step([events.AttemptDiscarded(number, discarded.reason)], nested)

    begun = _begin(attempt)
    plan.last_attempts[step.name] = scope.attempt_of(begun.run)
    with StateSpans() as states:
        outcome = await drive(begun, scope, record, states)
    plan.model = outcome.run.model or plan.model
    response = _response_of(outcome)
    if response.failure is not None:
        # The run has used up its retries, so only the failure of a service justifies another attempt.
        # A tool that ran, or may have run, must not run again.
        is_safe = response.validation is None and not attempt.has_called
        raise StepFailedError(replace(response.failure, retryable=response.failure.retryable and is_safe))
    output = Value(ValueKind.TEXT, text=response.content)
    return StepDone(output, enforcement=outcome.run.best, warnings=response.warnings)


def _begin(attempt: StepAttempt) -> Outcome:
    outcome = machine.start(request_of(attempt))
    if attempt.is_first:
        for happened in attempt.plan.progress.run_of(attempt.step.name)[1]:
            outcome = machine.step(outcome.run, happened)
    return outcome


def _response_of(outcome: Outcome) -> Response:
    if not isinstance(outcome.command, Finish):
        raise AssertionError("drive() ends with Finish")  # noqa: TRY004 - not a wrong type of argument
    return outcome.command.response


def request_of(attempt: StepAttempt) -> Request:
    """Return the request that the turn of a step answers."""
    step, request, parameters = attempt.step, attempt.plan.request, attempt.step.parameters
    tools = tuple(parameters.get("tools", ()))
    choice = ToolChoice(mode=ToolChoiceMode.NONE)
    if tools:
        choice = _tool_choice(str(parameters.get("tool_choice", "auto")))
    mode = Mode.CHAT
    if step.output.schema_json:
        mode = Mode.STRUCTURED
    step_request = Request(
        request_id=request.request_id,
        trace_id=request.trace_id,
        mode=mode,
        messages=messages_of(step, request, attempt.inputs),
        prompt=request.prompt,
        hints=replace(
            request.hints, **{name: parameters[name] for name in _HINTS if name in parameters}, tool_choice=choice
        ),
        output=step.output,
        tools=tools,
        retry=retry_of(step, request.retry),
        tenant=request.tenant,
        subject=request.subject,
        tool_policy=request.tool_policy,
        is_guarded=request.is_guarded,
    )
    if attempt.plan.is_final(step):
        return replace(step_request, rules=request.rules, semantic_intent=request.semantic_intent)
    return step_request


def _tool_choice(name: str) -> ToolChoice:
    """Return the tool choice in a step's parameter, which is either a mode or the name of a tool."""
    if name in tuple(ToolChoiceMode):
        return ToolChoice(mode=ToolChoiceMode(name))
    return ToolChoice(tool_name=name)
