"""What a journal keeps of an execution so that it can be taken up again, and how far that brings it.

Theory of operation. The machine is pure, so a request and the inputs that happened to it give the same run, the same
transitions and the same response each time. What ends inside a command that has not ended itself (a step of a plan, a
tool call) is an entry of its own: it is not done again when the command is.

Invariants:
    1. The first entry is Admitted, every other follows what it is caused by.
    2. Replaying all entries of an execution that ended gives its transitions and its response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core import machine
from services.orchestrator.core.plan import PlanPolicy, StepResult
from services.orchestrator.core.request import Request
from services.orchestrator.core.response import ToolCallRecord
from services.orchestrator.core.run import Input, Outcome, Transition


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


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A tool call is about to run, for this step of a plan or, without a name, for the model's turn."""

    call_id: str
    tool: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A tool call ended."""

    record: ToolCallRecord
    step: str = ""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step of a plan ended; `enforcement` is of its output."""

    result: StepResult
    enforcement: Enforcement | None = None


@dataclass(frozen=True, slots=True)
class NestedInput:
    """What happened to the machine of a plan's infer step, in its run number `number` from 1."""

    step: str
    number: int
    happened: Input


Inner = CallBegan | CallEnded | StepEnded | NestedInput
Entry = Admitted | Inner | Input


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened inside the outstanding command before it was interrupted, in order."""

    inner: tuple[Inner, ...] = ()

    @property
    def began(self) -> tuple[CallBegan, ...]:
        """The calls that were about to run, so that they may have."""
        return tuple(one for one in self.inner if isinstance(one, CallBegan))

    @property
    def records(self) -> tuple[ToolCallRecord, ...]:
        """The calls that ended, in the order in which they did."""
        return tuple(one.record for one in self.inner if isinstance(one, CallEnded))

    @property
    def steps(self) -> tuple[StepEnded, ...]:
        """The steps that ended, in the order in which they did."""
        return tuple(one for one in self.inner if isinstance(one, StepEnded))

    def record_of(self, call_id: str) -> ToolCallRecord | None:
        """Return the record of a call that ended."""
        return next((record for record in self.records if record.id == call_id), None)

    def lost_call(self, tools: Mapping[str, ToolDefinition]) -> CallBegan | None:
        """Return a call that may have run and must not run again: it has no end, and its tool is not idempotent."""
        ended = {record.id for record in self.records}
        return next((one for one in self.began if one.call_id not in ended and not _is_idempotent(one, tools)), None)

    def is_lost(self, call_id: str, tools: Mapping[str, ToolDefinition]) -> bool:
        """Tell whether a call may have run and must not run again."""
        return any(one.call_id == call_id and not _is_idempotent(one, tools) for one in self.began)

    def run_of(self, step: str) -> tuple[int, tuple[Input, ...]]:
        """Return the number of the last run of an infer step's machine, 0 for none, and what happened to it."""
        inside = [one for one in self.inner if isinstance(one, NestedInput) and one.step == step]
        number = max((one.number for one in inside), default=0)
        return number, tuple(one.happened for one in inside if one.number == number)

    def of_step(self, step: str) -> Progress:
        """Return the calls inside one step of a plan since something last happened to its machine."""
        own = [one for one in self.inner if not isinstance(one, StepEnded) and one.step == step]
        last = max((index for index, one in enumerate(own) if isinstance(one, NestedInput)), default=-1)
        return Progress(tuple(own[last + 1 :]))

    def has_called(self, step: str) -> bool:
        """Tell whether a step of a plan had begun to call tools."""
        return any(one.step == step for one in self.began)


def _is_idempotent(call: CallBegan, tools: Mapping[str, ToolDefinition]) -> bool:
    return call.tool in tools and tools[call.tool].idempotent


def lost_call_message(tool: str) -> str:
    """Say why a call is not run again."""
    return f"the call of {tool!r} may have run before the orchestrator was interrupted; it is not run again"


@dataclass(frozen=True, slots=True)
class Replay:
    """Where an execution stands: the last outcome, every transition that led there, what its command did so far."""

    outcome: Outcome
    transitions: tuple[Transition, ...]
    progress: Progress = Progress()


def replay(entries: Sequence[Entry]) -> Replay:
    """Take an execution's entries again; raises ValueError when they do not begin with its admission."""
    first, *rest = entries or (None,)
    if not isinstance(first, Admitted):
        raise ValueError("the entries do not begin with an admission")  # noqa: TRY004 - not a wrong type of argument
    found = machine.start(first.request, first.bounds)
    transitions = found.transitions
    inner: list[Inner] = []
    for entry in rest:
        match entry:
            case Admitted():
                raise ValueError("an execution is admitted once")
            case CallBegan() | CallEnded() | StepEnded() | NestedInput():
                inner.append(entry)
            case _:
                found = machine.step(found.run, entry)
                transitions += found.transitions
                inner = []
    return Replay(found, transitions, Progress(tuple(inner)))
