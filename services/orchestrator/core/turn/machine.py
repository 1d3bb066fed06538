"""Advances one execution as a pure state machine: each answer yields the next command.

Theory of operation. `step(run, answer)` returns the run after the answer, with the lifecycle transitions that it made.
The run has one outstanding command, which the app carries out. Its answer is the next input. Nothing here waits,
performs I/O or uses randomness. Each command defines the next step after its answer, in the module of its phase.

Invariants:
    1. Every transition is in the lifecycle's table.
    2. A live run has one outstanding command, and accepts the answer to that command or Failed. The outstanding
       command of a terminal run is Finish, and the run accepts no answer.
    3. Tool calls that ran stay in `records`, in order. No call runs twice.
    4. A response with no failure satisfies its schema, is marked PARTIAL, or hands over calls.
"""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.core.kernel.command import Answer, AnsweredCommand, IllegalAnswerError
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.turn.ending import Failed, after_failure, ask
from services.orchestrator.core.turn.preparing import CheckInput, InputChecked, begin_work
from services.orchestrator.core.turn.run import Outcome, Run, State, Transition


def start(request: Request, bounds: PlanPolicy | None = None) -> Outcome:
    """Start an admitted request. A plan is checked against `bounds`."""
    admitted = Transition(None, State.INIT, 1, "request admitted")
    run = Run(request=request, bounds=bounds or PlanPolicy())
    outcome = ask(run, CheckInput()) if request.is_guarded else begin_work(run)
    return replace(outcome, transitions=(admitted, *outcome.transitions))


def step(run: Run, answer: Answer) -> Outcome:
    """Apply an answer to a run.

    Raises IllegalAnswerError if it is not an answer to the outstanding command.
    """
    command = run.outstanding
    if not isinstance(command, AnsweredCommand) or not isinstance(answer, command.answer | Failed):
        command_name, answer_name = type(command).__name__, type(answer).__name__
        raise IllegalAnswerError(f"{answer_name} does not answer {command_name} in {run.state}")
    position = run.position + (not isinstance(answer, InputChecked))
    run = replace(run, usage=run.usage + answer.total_usage, position=position)
    if isinstance(answer, Failed):
        return after_failure(run, answer)
    outcome: Outcome = command.after(run, answer)
    return outcome
