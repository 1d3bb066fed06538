"""Replays the stored entries of an execution, so that it can be resumed.

Theory of operation. The machine is pure: the same request and answers always produce the same run, transitions and
response. Partial results of a command (a step of a plan, a tool call) have separate entries, so that a resumed command
does not repeat them.

Invariants:
    1. The first entry is Admitted; every other entry follows its cause.
    2. Replaying all entries of an ended execution yields its transitions and its response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.orchestrator.core.execution.progress import (
    CallBegan,
    CallEnded,
    ChildAnswer,
    Progress,
    StepEnded,
    StoredProgress,
)
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.run import Outcome, Transition


@dataclass(frozen=True, slots=True)
class Admitted:
    """The admission of a request, with the bounds for checking its plan.

    `after_sequence` is the sequence of the last event of an earlier run under the same ID, or 0 if there was no earlier
    run. `max_execution_s` is the time limit of the execution, including interruptions, or None if an earlier version
    admitted the request.
    """

    request: Request
    bounds: PlanPolicy = field(default_factory=PlanPolicy)
    after_sequence: int = 0
    max_execution_s: float | None = None


Entry = Admitted | StoredProgress | Answer


@dataclass(frozen=True, slots=True)
class Replay:
    """The position of an execution: the machine's last outcome, and the progress since then.

    Attributes:
        admitted: The admission of its request.
        outcome: The outcome of the last step of its machine.
        transitions: All transitions up to now.
        progress: The progress of its outstanding command.
        is_resumed: Whether the execution ran before.
    """

    admitted: Admitted
    outcome: Outcome
    transitions: tuple[Transition, ...]
    progress: Progress = field(default_factory=Progress)
    is_resumed: bool = True


def begin(admitted: Admitted) -> Replay:
    """Return the position of a newly admitted execution."""
    outcome = machine.start(admitted.request, admitted.bounds)
    return Replay(admitted, outcome, outcome.transitions, is_resumed=False)


def replay(entries: Sequence[Entry]) -> Replay:
    """Replay an execution's entries. Raises ValueError if they do not begin with its admission."""
    first, *rest = entries or (None,)
    if not isinstance(first, Admitted):
        raise ValueError("the entries do not begin with an admission")  # noqa: TRY004 - not a wrong type of argument
    outcome = machine.start(first.request, first.bounds)
    transitions = outcome.transitions
    progress = Progress()
    for entry in rest:
        match entry:
            case Admitted():
                raise ValueError("an execution is admitted once")
            case CallBegan() | CallEnded() | StepEnded() | ChildAnswer():
                progress.add(entry)
            case _:
                outcome = machine.step(outcome.run, entry)
                transitions += outcome.transitions
                progress.answer(entry)
    return Replay(first, outcome, transitions, progress)
