"""Advances one execution as a pure state machine: each input yields the next command.

Theory of operation. `step(run, input)` returns the run after the input, with the lifecycle transitions that it made.
The run has one outstanding command, which the app carries out. The result of the command is the next input. Nothing
here waits, performs I/O or uses randomness. The handlers of the inputs are in `phases`.

Invariants:
    1. Every transition is in the lifecycle's table.
    2. A live run has one outstanding command, and accepts the answer to that command (`ANSWER_OF`) or Failed. The
       outstanding command of a terminal run is Finish, and the run accepts no input.
    3. Tool calls that ran are in `records`, in order, whatever happens later. No call runs twice.
    4. A response with no failure satisfies its schema, is marked PARTIAL, or hands over calls.
"""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.core.execution.commands import ANSWER_OF, CheckInput
from services.orchestrator.core.execution.ending import ask
from services.orchestrator.core.execution.inputs import Failed, Input, InputChecked, usage_of
from services.orchestrator.core.execution.lifecycle import IllegalInputError, State
from services.orchestrator.core.execution.phases.handlers import HANDLERS
from services.orchestrator.core.execution.phases.starting import begin_work
from services.orchestrator.core.execution.run import Outcome, Run, Transition
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.request import Request


def start(request: Request, bounds: PlanPolicy | None = None) -> Outcome:
    """Start an admitted request. A plan is checked against `bounds`."""
    admitted = Transition(None, State.INIT, 1, "request admitted")
    run = Run(request=request, bounds=bounds or PlanPolicy())
    outcome = ask(run, CheckInput()) if request.is_guarded else begin_work(run)
    return replace(outcome, transitions=(admitted, *outcome.transitions))


def step(run: Run, happened: Input) -> Outcome:
    """Apply an input to a run.

    Raises IllegalInputError if the input does not answer the outstanding command.
    """
    _check_answer(run, happened)
    position = run.position + (not isinstance(happened, InputChecked))
    run = replace(run, usage=run.usage + usage_of(happened), position=position)
    return HANDLERS[type(happened)](run, happened)


def _check_answer(run: Run, happened: Input) -> None:
    answer = ANSWER_OF.get(type(run.outstanding))  # type: ignore[arg-type]  # None has no answer
    if answer is None or not isinstance(happened, answer | Failed):
        command_name, input_name = type(run.outstanding).__name__, type(happened).__name__
        raise IllegalInputError(f"{input_name} does not answer {command_name} in {run.state}")
