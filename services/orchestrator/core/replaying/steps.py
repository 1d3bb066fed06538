"""The steps of an execution, read from its entries: the result of each command, under a stable name.

The machine processes the entries again, because only its commands show which step ended in a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.orchestrator.core.execution.progress import CallBegan, CallEnded, NestedInput, StepEnded
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.kernel.command import Answer, Command
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Inferred
from services.orchestrator.core.turn.preparing import InputChecked
from services.orchestrator.core.turn.voting import Sampled

PLAN_STEP = "plan/"  # the prefix of the names of a plan's steps


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """The answer to a command of an execution's machine, with the name of the step."""

    name: str
    gave: Answer


@dataclass(frozen=True, slots=True)
class Record:
    """An execution as recorded in its entries.

    Attributes:
        admitted: The admission of its request.
        answers: The answers to the commands of its machine, in order.
        plan: Its plan, or None if it has no plan.
        plan_steps: The steps of its plan, in the order in which they ended.
        calls: The tool calls that ended.
        seeds: The seeds of each machine's inferences, by plan step ("" for the machine of the execution) and by the
            position of the machine's command. The seed of any other command is None.
    """

    admitted: Admitted
    answers: tuple[RecordedAnswer, ...]
    plan: Plan | None
    plan_steps: tuple[StepEnded, ...]
    calls: tuple[CallEnded, ...]
    seeds: Mapping[str, tuple[int | None, ...]]

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the recorded steps, in order."""
        return (*(entry.name for entry in self.answers), *(PLAN_STEP + entry.result.name for entry in self.plan_steps))


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
    outcome, names, answers = machine.start(first.request, first.bounds), StepNames(), list[RecordedAnswer]()
    for happened in _answers_of(rest):
        if name := names.next(outcome.command):
            answers.append(RecordedAnswer(name, happened))
        outcome = machine.step(outcome.run, happened)
    return Record(
        first,
        tuple(answers),
        outcome.run.plan,
        plan_steps=tuple(entry for entry in rest if isinstance(entry, StepEnded)),
        calls=tuple(entry for entry in rest if isinstance(entry, CallEnded)),
        seeds=_seeds_of(rest),
    )


def _answers_of(entries: Sequence[Entry]) -> Iterator[Answer]:
    """Yield the answers that the execution's machine received, without those of its steps' machines."""
    for entry in entries:
        if isinstance(entry, Admitted):
            raise ValueError("an execution is admitted once")  # noqa: TRY004 - not a wrong type of argument
        if not isinstance(entry, CallBegan | CallEnded | NestedInput | StepEnded):
            yield entry


def _seeds_of(entries: Sequence[Entry]) -> Mapping[str, tuple[int | None, ...]]:
    last_runs = {entry.step: entry.number for entry in entries if isinstance(entry, NestedInput)}
    machines: dict[str, list[Answer]] = {"": list(_answers_of(entries))}
    for entry in entries:
        if isinstance(entry, NestedInput) and entry.number == last_runs[entry.step]:
            machines.setdefault(entry.step, []).append(entry.happened)
    return {
        step: tuple(_seed_of(answer) for answer in answers if not isinstance(answer, InputChecked))
        for step, answers in machines.items()
    }


def _seed_of(happened: Answer) -> int | None:
    match happened:
        case Inferred(output=output):
            return output.seed
        case Sampled(seed=seed):
            return seed
        case _:
            return None
