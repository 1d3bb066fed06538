"""Drives a machine to its end, either for an execution or for an infer step of a plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from pagantic_common.domain.errors import PaganticError
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects.scope import Effect, RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recording.observing import StateSpans
from services.orchestrator.app.recording.recorder import attempt_scope
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import failed_with
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand, Command
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.run import Outcome, Run
from services.orchestrator.core.turn.starting import CheckInput
from services.orchestrator.core.turn.voting import Sample

Record = Callable[[Outcome, Answer], Awaitable[None]]


async def drive(outcome: Outcome, scope: RunScope, record: Record, states: StateSpans) -> Outcome:
    """Carry out each command and `record` its result until the machine has finished. Return the last outcome."""
    while isinstance(command := outcome.command, AnsweredCommand):
        run, effect = outcome.run, scope.effects[type(command)]
        if scope.taken is not None:
            effect = partial(_answer_or_carry_out, effect, scope.taken)
        states.enter(run.state, run.attempt)
        with attempt_scope(scope.attempt_of(run)), work_scope(deadline=scope.deadline()):
            try:
                happened = await effect(run, command, scope)
            except PaganticError as error:
                happened = failed_with(run, scope.recorder.progress, failure_from(error), scope.step)
        outcome = machine.step(run, happened)
        await record(outcome, happened)
    return outcome


async def _answer_or_carry_out(
    effect: Effect, taken: RecordedAnswers, run: Run, command: Command, scope: RunScope
) -> Answer:
    """Return the recorded answer to a command, or carry out the command with the recorded seed."""
    if not scope.step and not isinstance(command, CheckInput):
        if name := taken.step_at(run.position):
            await scope.recorder.emit(events.StepRecorded(name), caused_by=scope.cause)
        if (answer := taken.answer_at(run.position, command)) is not None:
            return answer
    if isinstance(command, Infer | Sample) and command.seed is None:
        command = replace(command, seed=taken.seed_at(scope.step, run.position))
    return await effect(run, command, scope)
