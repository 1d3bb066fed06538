"""Runs an infer step of a plan as a whole turn on a separate machine."""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.app.effects.plan_steps.scope import StepAttempt, StepDone, StepFailedError
from services.orchestrator.app.effects.scope import drive
from services.orchestrator.app.recording.observing import StateSpans
from services.orchestrator.app.recording.recorder import attempt_scope
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import ChildAnswer
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.plan import Value, ValueKind
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.ending import Finish
from services.orchestrator.core.turn.run import Outcome


async def run_infer(attempt: StepAttempt) -> StepDone:
    """Run a turn with tools, the step's contract, repair and retries.

    An interrupted run continues after the last recorded input of its machine.
    """
    step, plan, scope = attempt.step, attempt.plan, attempt.scope()

    async def record(outcome: Outcome, happened: Answer) -> None:
        plan.last_attempts[step.name] = scope.attempt_of(outcome.run)
        answers = [ChildAnswer(attempt.path, attempt.run_number, happened)]
        discarded = outcome.discarded
        if discarded is None:
            await scope.recorder.record_step([], answers)
            return
        number = attempt.run_number - 1 + discarded.attempt
        with attempt_scope(number):
            await scope.recorder.record_step([events.AttemptDiscarded(number, discarded.reason)], answers)

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
    outcome = machine.start(attempt.request)
    if attempt.is_first:
        for happened in attempt.plan.progress.run_of(attempt.path)[1]:
            outcome = machine.step(outcome.run, happened)
    return outcome


def _response_of(outcome: Outcome) -> Response:
    if not isinstance(outcome.command, Finish):
        raise AssertionError("drive() ends with Finish")  # noqa: TRY004 - not a wrong type of argument
    return outcome.command.response
