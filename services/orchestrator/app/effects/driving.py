"""Drives a machine to its end: an execution's, or that of a plan's infer step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pagantic_common.domain.errors import PaganticError
from pagantic_common.telemetry.scope import work_scope
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recording.observing.execution import StateSpans
from services.orchestrator.app.recording.recorder import attempt_scope
from services.orchestrator.core.execution import machine
from services.orchestrator.core.execution.commands import Finish
from services.orchestrator.core.execution.inputs import Input
from services.orchestrator.core.execution.progress import failed_with
from services.orchestrator.core.execution.run import Outcome

Record = Callable[[Outcome, Input], Awaitable[None]]


async def drive(outcome: Outcome, scope: RunScope, record: Record, states: StateSpans) -> Outcome:
    """Carry out one command after the other, and `record` what came of each, until the machine has finished."""
    while not isinstance(command := outcome.command, Finish):
        run, effect = outcome.run, scope.effects[type(command)]
        states.enter(run.state, run.attempt)
        with attempt_scope(scope.attempt_of(run)), work_scope(deadline=scope.deadline()):
            try:
                happened = await effect(run, command, scope)
            except PaganticError as error:
                happened = failed_with(run, scope.recorder.progress, failure_from(error), scope.step)
        outcome = machine.step(run, happened)
        await record(outcome, happened)
    return outcome
