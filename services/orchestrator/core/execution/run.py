"""What the machine knows of an execution, and what one of its steps gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import Message
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.execution.commands import Command
from services.orchestrator.core.execution.inputs import Replica
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.model.plan import Plan, PlanPolicy, StepResult
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.voting import Count


@dataclass(frozen=True, slots=True)
class DiscardedAttempt:
    """An attempt of which what was streamed no longer counts."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transition:
    """The lifecycle moved; `source` is None when the execution was admitted."""

    source: State | None
    target: State
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that the machine knows of an execution."""

    request: Request
    state: State = State.INIT
    outstanding: Command | None = None  # None only inside a step
    attempt: int = 1
    prepared: Prepared = field(default_factory=Prepared)
    transcript: tuple[Message, ...] = ()  # what the model saw after the request
    turn: tuple[Message, ...] = ()  # of it, what a conversation keeps: not the attempts that were discarded
    rounds: int = 0
    is_in_tool_phase: bool = False
    has_tools_left: bool = True  # until the model only repeats itself
    max_tokens: int = 0  # a limit that a retry raised
    cut: Failure | None = None  # why the attempt at hand is not complete
    streamed: InferenceOutput | None = None  # the partial output of a stopped inference
    seed: int | None = None
    model: str = ""  # the alias that served
    records: tuple[ToolCallRecord, ...] = ()
    usage: TokenUsage = TokenUsage()
    output: InferenceOutput | None = None
    latest: tuple[ToolCallRecord, ...] = ()  # records of the last round of tool calls
    best: Enforcement | None = None
    best_output: InferenceOutput | None = None  # the output that `best` judges
    repair_attempts: int = 0
    last_failure: Failure | None = None
    replicas: tuple[Replica, ...] = ()
    count: Count | None = None
    plan: Plan | None = None
    bounds: PlanPolicy = field(default_factory=PlanPolicy)
    results: tuple[StepResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave: the run, how it moved, and the attempt that the step discarded."""

    run: Run
    transitions: tuple[Transition, ...] = ()
    discarded: DiscardedAttempt | None = None

    @property
    def command(self) -> Command:
        """The one command that is outstanding."""
        if self.run.outstanding is None:
            raise AssertionError(f"nothing is outstanding in {self.run.state}")
        return self.run.outstanding
