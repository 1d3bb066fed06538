"""What a journal keeps of an execution so that it can be taken up again, and how far that brings it.

Theory of operation. The machine is pure, so a request and the inputs that happened to it give the same run, the same
transitions and the same response each time. What ends inside a command that has not ended itself (a step of a plan, a
tool call) is an entry of its own: it is not done again when the command is.

Invariants:
    1. The first entry is Admitted, every other follows what it is caused by.
    2. Replaying all entries of an execution that ended gives its transitions and its response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.orchestrator.core.execution import machine
from services.orchestrator.core.execution.inputs import Input
from services.orchestrator.core.execution.progress import (
    CallBegan,
    CallEnded,
    NestedInput,
    Progress,
    StepEnded,
    StoredProgress,
)
from services.orchestrator.core.execution.run import Outcome, Transition
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.request import Request


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request was admitted, and its plan is checked under these bounds.

    `after_sequence` is the last event of an earlier run under the same id; 0 when there was none. `max_execution_s` is
    the longest that it may take, interruptions included; None where an earlier version admitted it.
    """

    request: Request
    bounds: PlanPolicy = field(default_factory=PlanPolicy)
    after_sequence: int = 0
    max_execution_s: float | None = None


Entry = Admitted | StoredProgress | Input


@dataclass(frozen=True, slots=True)
class Replay:
    """Where an execution stands.

    Attributes:
        admitted: Its admission.
        outcome: The last outcome.
        transitions: Every transition that led there.
        progress: What its outstanding command did so far.
        is_resumed: Whether it ran before; False for one that begins.
    """

    admitted: Admitted
    outcome: Outcome
    transitions: tuple[Transition, ...]
    progress: Progress = field(default_factory=Progress)
    is_resumed: bool = True


def begin(admitted: Admitted) -> Replay:
    """Return where an execution stands that was just admitted."""
    outcome = machine.start(admitted.request, admitted.bounds)
    return Replay(admitted, outcome, outcome.transitions, is_resumed=False)


def replay(entries: Sequence[Entry]) -> Replay:
    """Take an execution's entries again; raises ValueError when they do not begin with its admission."""
    first, *rest = entries or (None,)
    if not isinstance(first, Admitted):
        raise ValueError("the entries do not begin with an admission")  # noqa: TRY004 - not a wrong type of argument
    found = machine.start(first.request, first.bounds)
    transitions = found.transitions
    progress = Progress()
    for entry in rest:
        match entry:
            case Admitted():
                raise ValueError("an execution is admitted once")
            case CallBegan() | CallEnded() | StepEnded() | NestedInput():
                progress.add(entry)
            case _:
                found = machine.step(found.run, entry)
                transitions += found.transitions
                progress.answer(entry)
    return Replay(first, found, transitions, progress)
