"""The lifecycle of an execution, the state of its machine, and the outcome of one machine step.

Invariants of the lifecycle:
    1. COMPLETE, ERROR and CANCELLED are terminal states: no transition leaves them.
    2. Every live state leads to ERROR and to CANCELLED.
    3. The attempt counts the entries into EXECUTE, starting at 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import Message, ToolCall
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, StageOutcome
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.kernel.command import Command
from services.orchestrator.core.model.plan import Plan, PlanPolicy, StepResult
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.response_warning import GuardWarnings
from services.orchestrator.core.model.voting import Count
from services.orchestrator.core.turn.replicas import Replica


class State(StrEnum):
    """A state of an execution's lifecycle, from INIT to a terminal state."""

    INIT = "INIT"
    PLAN = "PLAN"
    PREPARE = "PREPARE"
    EXECUTE = "EXECUTE"
    VALIDATE = "VALIDATE"
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether no transition leaves the state."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETE, State.ERROR, State.CANCELLED})
_ENDS = frozenset({State.ERROR, State.CANCELLED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.INIT: frozenset({State.PLAN, State.PREPARE}) | _ENDS,
    State.PLAN: frozenset({State.PREPARE}) | _ENDS,
    State.PREPARE: frozenset({State.EXECUTE}) | _ENDS,
    State.EXECUTE: frozenset({State.VALIDATE, State.COMPLETE}) | _ENDS,
    State.VALIDATE: frozenset({State.COMPLETE, State.EXECUTE}) | _ENDS,
    State.COMPLETE: frozenset(),
    State.ERROR: frozenset(),
    State.CANCELLED: frozenset(),
}


class IllegalTransitionError(RuntimeError):
    """Raised if a transition is not in the table, which is a programming error."""


def check_transition(source: State, target: State) -> None:
    """Raise IllegalTransitionError unless the table contains the transition."""
    if target not in TRANSITIONS[source]:
        raise IllegalTransitionError(f"{source} does not lead to {target}")


@dataclass(frozen=True, slots=True)
class DiscardedAttempt:
    """A discarded attempt. Its streamed text no longer counts."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition of the lifecycle. `source` is None at the admission."""

    source: State | None
    target: State
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """The state of the machine for one execution, including its outstanding command."""

    request: Request
    state: State = State.INIT
    outstanding: Command | None = None  # None only during a machine step
    attempt: int = 1
    position: int = 0  # number of answers so far, except from the guards
    prepared: Prepared = field(default_factory=Prepared)
    transcript: tuple[Message, ...] = ()  # messages after the request's messages
    turn: tuple[Message, ...] = ()  # transcript messages to keep in the conversation, without discarded attempts
    rounds: int = 0
    is_in_tool_phase: bool = False
    has_tools_left: bool = True  # False once the model repeats itself
    has_corrected_calls: bool = False  # True once the model was asked to correct calls of caller-run tools
    max_tokens: int = 0  # limit raised by a retry, or 0
    cut: Failure | None = None  # truncation of the current attempt
    streamed: InferenceOutput | None = None  # partial output of a stopped inference
    seed: int | None = None
    model: str = ""  # alias that served the latest inference
    records: tuple[ToolCallRecord, ...] = ()
    usage: TokenUsage = TokenUsage()
    output: InferenceOutput | None = None
    latest: tuple[ToolCallRecord, ...] = ()  # records of the latest round of tool calls
    handed_over: tuple[ToolCall, ...] = ()  # calls for the caller to run
    best: Enforcement | None = None
    best_output: InferenceOutput | None = None  # the output to which `best` belongs
    repair_attempts: int = 0
    last_failure: Failure | None = None
    replicas: tuple[Replica, ...] = ()
    count: Count | None = None
    plan: Plan | None = None
    bounds: PlanPolicy = field(default_factory=PlanPolicy)
    results: tuple[StepResult, ...] = ()
    warnings: GuardWarnings = ()

    def with_best(self, enforcement: Enforcement | None) -> Run:
        """Return the run with an enforcement as its best enforcement, and with the repairs counted."""
        if enforcement is None:
            return replace(self, best=None)
        return replace(self, best=enforcement, repair_attempts=self.repair_attempts + count_repairs(enforcement))


def has_answer_phase(run: Run) -> bool:
    """Return whether a constrained answer is inferred separately after the tool calls."""
    return run.request.mode is Mode.STRUCTURED or bool(run.prepared.engine_text)


def count_repairs(enforcement: Enforcement) -> int:
    """Return the number of stages that repaired the output."""
    return sum(1 for stage in enforcement.stages if stage.outcome is StageOutcome.REPAIRED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a machine step: the run, its transitions, and the discarded attempt."""

    run: Run
    transitions: tuple[Transition, ...] = ()
    discarded: DiscardedAttempt | None = None

    @property
    def command(self) -> Command:
        """The outstanding command. Raises AssertionError if there is none."""
        if self.run.outstanding is None:
            raise AssertionError(f"nothing is outstanding in {self.run.state}")
        return self.run.outstanding
