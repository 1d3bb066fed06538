"""The steps of an execution, read from its entries: the result of each command, under a stable name.

The machines process the entries again, because only their commands reveal the step that ended in a failure. The name
of a child's step consists of the child's path and the step's name within the child.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.orchestrator.core.conversation.prompt import with_prepared
from services.orchestrator.core.execution.progress import CallBegan, CallEnded, ChildAnswer, Progress, StepEnded
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.kernel.command import Answer, Command
from services.orchestrator.core.model.plan import Plan, path_of_step
from services.orchestrator.core.plans.schedule import PlanSchedule
from services.orchestrator.core.plans.step_input import request_of_step
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Inferred
from services.orchestrator.core.turn.plan_steps import RunPlan
from services.orchestrator.core.turn.preparing import InputChecked
from services.orchestrator.core.turn.run import Outcome
from services.orchestrator.core.turn.voting import Sampled


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer to a command of a machine, with the name of the step."""

    name: str
    gave: Answer


Answers = tuple[RecordedAnswer, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """An execution as recorded in its entries.

    Attributes:
        admitted: The admission of its request.
        answers: The answers to the commands of its machine, in order.
        plan: Its plan, or None if it has no plan.
        plan_steps: The steps of its plan, in the order in which they ended.
        children: The answers to the commands of the last run of each child, by its path.
        calls: The tool calls that ended.
        seeds: The seeds of each machine's inferences, by its path and by the position of the machine's command. The
            seed of any other command is None.
    """

    admitted: Admitted
    answers: Answers
    plan: Plan | None
    plan_steps: tuple[StepEnded, ...]
    children: Mapping[str, Answers]
    calls: tuple[CallEnded, ...]
    seeds: Mapping[str, tuple[int | None, ...]]

    @property
    def steps(self) -> tuple[RecordedAnswer | StepEnded, ...]:
        """The recorded steps: the machine's steps, and each plan step after the steps of its child."""
        steps: list[RecordedAnswer | StepEnded] = [*self.answers]
        unended = dict(self.children)
        for entry in self.plan_steps:
            steps += [*unended.pop(entry.path, ()), entry]
        return (*steps, *(answer for answers in unended.values() for answer in answers))

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the recorded steps, in order."""
        return tuple(step.path if isinstance(step, StepEnded) else step.name for step in self.steps)


class StepNames:
    """Assigns names to the commands of one machine, in order."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(self, command: Command) -> str:
        """Return the name of the next command, or an empty string if the command is not a separate step."""
        if not command.is_counted:
            return command.step
        self._counts[command.step] += 1
        return f"{command.step}-{self._counts[command.step]}"


def read_record(entries: Sequence[Entry]) -> Record:
    """Read an execution's entries. Raises ValueError if the entries do not belong to exactly one execution."""
    first, *rest = entries or (None,)
    if not isinstance(first, Admitted):
        raise ValueError("the entries do not begin with an admission")  # noqa: TRY004 - not a wrong type of argument
    own, inner = _sorted(rest)
    answers, outcome, planned = _named(machine.start(first.request, first.bounds), own)
    children = {} if planned is None else _children_of(planned, inner)
    received = {"": tuple(own), **{path: inner.run_of(path)[1] for path in children}}
    return Record(
        first,
        answers,
        outcome.run.plan,
        plan_steps=inner.steps,
        children=children,
        calls=tuple(entry for entry in inner.inner if isinstance(entry, CallEnded)),
        seeds={path: _seeds_of(each) for path, each in received.items()},
    )


def _sorted(entries: Sequence[Entry]) -> tuple[list[Answer], Progress]:
    """Return the answers that the execution's machine received, and the progress of its children."""
    own, inner = list[Answer](), Progress()
    for entry in entries:
        if isinstance(entry, Admitted):
            raise ValueError("an execution is admitted once")  # noqa: TRY004 - not a wrong type of argument
        if isinstance(entry, CallBegan | CallEnded | ChildAnswer | StepEnded):
            inner.add(entry)
        else:
            own.append(entry)
    return own, inner


def _named(outcome: Outcome, answers: Sequence[Answer], prefix: str = "") -> tuple[Answers, Outcome, Outcome | None]:
    """Return the answers with the names of their steps, the last outcome, and the outcome that ran a plan, or None."""
    names, named, planned = StepNames(), list[RecordedAnswer](), None
    for answer in answers:
        if name := names.next(outcome.command):
            named.append(RecordedAnswer(prefix + name, answer))
        outcome = machine.step(outcome.run, answer)
        if isinstance(outcome.command, RunPlan):
            planned = outcome
    return tuple(named), outcome, planned


def _children_of(planned: Outcome, inner: Progress) -> dict[str, Answers]:
    """Return the answers that the children of a plan's steps received in their last runs, by path."""
    run = planned.run
    assert run.plan is not None  # noqa: S101 - only a run with a plan runs steps
    request = with_prepared(run.request, run.prepared)
    schedule = PlanSchedule(run.plan, tuple(entry.result for entry in inner.steps))
    children = {}
    for step in run.plan.steps:
        path = path_of_step(step.name)
        if answers := inner.run_of(path)[1]:
            started = machine.start(request_of_step(step, run.plan, request, schedule.inputs_of(step)))
            children[path] = _named(started, answers, f"{path}/")[0]
    return children


def _seeds_of(answers: Sequence[Answer]) -> tuple[int | None, ...]:
    return tuple(_seed_of(answer) for answer in answers if not isinstance(answer, InputChecked))


def _seed_of(happened: Answer) -> int | None:
    match happened:
        case Inferred(output=output):
            return output.seed
        case Sampled(seed=seed):
            return seed
        case _:
            return None
