"""Defines the events of an execution: the stored events of its timeline, and the streamed pieces of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.errors import ErrorCode, Failure
from pagantic_common.domain.messages import ToolProgress
from pagantic_common.domain.validation import Stage, StageReport
from services.orchestrator.core.execution.wait import Wait
from services.orchestrator.core.guards.rules import GuardReport
from services.orchestrator.core.model.request import ExperimentVariant
from services.orchestrator.core.model.response import FinishReason, Response, ToolCallPiece
from services.orchestrator.core.turn.run import Transition


class InferencePurpose(StrEnum):
    """The purpose of an inference, such as an answer, a plan or a summary."""

    ANSWER = "ANSWER"
    PLAN = "PLAN"
    SUMMARY = "SUMMARY"
    JUDGE = "JUDGE"
    QUERY = "QUERY"
    DECISION = "DECISION"


@dataclass(frozen=True, slots=True)
class InferenceStart:
    """The start of an inference, with its message and tool counts, constraints, temperature and purpose."""

    message_count: int
    tool_defs_count: int
    schema_present: bool
    grammar_present: bool
    temperature: float | None
    purpose: InferencePurpose = InferencePurpose.ANSWER


@dataclass(frozen=True, slots=True)
class InferenceEnd:
    """The end of an inference.

    `model` is the alias that served the inference, or an empty string. `cached_tokens` is included in `tokens_in`.
    """

    tokens_in: int
    tokens_out: int
    finish_reason: FinishReason
    tool_call_count: int
    model: str = ""
    seed: int | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ToolStart:
    """The start of a tool call."""

    tool_name: str
    tool_call_id: str
    args_hash: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """The end of a tool call."""

    tool_name: str
    tool_call_id: str
    args_hash: str
    success: bool
    error_code: ErrorCode | None


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """The start of a tool call's wait for an approval."""

    approval: Wait


@dataclass(frozen=True, slots=True)
class ApprovalResolved:
    """The end of a tool call's wait for an approval."""

    approval: Wait


@dataclass(frozen=True, slots=True)
class WaitBegan:
    """The start of a wait for a signal, for an answer, or until a time."""

    wait: Wait


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The end of a wait for a signal, for an answer, or until a time."""

    wait: Wait


@dataclass(frozen=True, slots=True)
class SignalDropped:
    """The loss of a kept signal that broke the schema of the wait that took it."""

    name: str
    signal_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ContextRetrieved:
    """The retrieval of context from a collection, with the numbers of chunks, tokens and additional queries."""

    collection: str
    chunk_count: int
    token_count: int
    more_query_count: int = 0


@dataclass(frozen=True, slots=True)
class ContextWeighed:
    """The model's estimate of whether the chunks contain the answer. A value of None is unknown."""

    min_probability: float
    probability: float | None = None
    log_odds: float | None = None
    tokens_in: int = 0


@dataclass(frozen=True, slots=True)
class RepairApplied:
    """The repair of an output by a stage."""

    stage: Stage
    repairs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ValidationStage:
    """The end of a validation stage."""

    report: StageReport


@dataclass(frozen=True, slots=True)
class StepStart:
    """The start of a plan step."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a plan step."""

    name: str
    kind: str
    success: bool


@dataclass(frozen=True, slots=True)
class StepRecorded:
    """The reuse of a step's result from the record of another execution."""

    name: str


@dataclass(frozen=True, slots=True)
class VoteCast:
    """The vote or the abstention of a replica.

    `value_hash` is the SHA-256 of the vote's canonical JSON in hexadecimal.
    """

    replica_index: int
    value_hash: str
    is_abstained: bool


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """The next piece of the answer's text, which is streamed but not stored."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the reasoning's text, which is streamed but not stored."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a call of a client tool, which is streamed but not stored."""

    piece: ToolCallPiece

    @property
    def text(self) -> str:
        """The piece of the call's arguments, as JSON text."""
        return self.piece.arguments_json


@dataclass(frozen=True, slots=True)
class ToolProgressed:
    """The progress of a running tool call, which is streamed but not stored."""

    progress: ToolProgress

    @property
    def text(self) -> str:
        """The text of the progress message."""
        return self.progress.message


@dataclass(frozen=True, slots=True)
class InferenceContinued:
    """The continuation of a lost replica's answer by another replica, after `tokens` tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class GuardActed:
    """The action of a guard that blocked or redacted text, or failed to check it."""

    report: GuardReport


@dataclass(frozen=True, slots=True)
class VariantAssigned:
    """The assignment of an experiment's variant to the request."""

    variant: ExperimentVariant


@dataclass(frozen=True, slots=True)
class AttemptDiscarded:
    """The discarding of an attempt and its streamed text."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of the execution."""

    response: Response


@dataclass(frozen=True, slots=True)
class Resumed:
    """The resumption of an interrupted execution."""

    completed_steps: int = 0


@dataclass(frozen=True, slots=True)
class Parked:
    """The parking of an execution until a time, or until it is signalled."""

    wakes_at: datetime


@dataclass(frozen=True, slots=True)
class Woken:
    """The waking of a parked execution."""


Payload = (
    Transition
    | InferenceStart
    | InferenceEnd
    | ToolStart
    | ToolEnd
    | ApprovalRequested
    | ApprovalResolved
    | WaitBegan
    | WaitEnded
    | SignalDropped
    | ContextRetrieved
    | ContextWeighed
    | RepairApplied
    | ValidationStage
    | VoteCast
    | StepStart
    | StepEnd
    | StepRecorded
    | ContentDelta
    | ReasoningDelta
    | ToolCallDelta
    | ToolProgressed
    | InferenceContinued
    | GuardActed
    | VariantAssigned
    | AttemptDiscarded
    | Completed
    | Resumed
    | Parked
    | Woken
)


@dataclass(frozen=True, slots=True)
class EventName:
    """The layer and the name of an event in timelines, spans and metrics."""

    layer: str
    action: str


NAME_OF: Mapping[type[Payload], EventName] = MappingProxyType(
    {
        Transition: EventName("orchestrator", "lifecycle.transition"),
        Resumed: EventName("orchestrator", "execution.resumed"),
        Parked: EventName("orchestrator", "execution.parked"),
        Woken: EventName("orchestrator", "execution.woken"),
        Completed: EventName("orchestrator", "execution.end"),
        AttemptDiscarded: EventName("orchestrator", "attempt.discarded"),
        GuardActed: EventName("orchestrator", "guard.acted"),
        VariantAssigned: EventName("orchestrator", "variant.assigned"),
        VoteCast: EventName("orchestrator", "vote.cast"),
        StepStart: EventName("orchestrator", "step.start"),
        StepEnd: EventName("orchestrator", "step.end"),
        StepRecorded: EventName("orchestrator", "step.recorded"),
        InferenceStart: EventName("inference", "inference.start"),
        InferenceEnd: EventName("inference", "inference.end"),
        InferenceContinued: EventName("inference", "inference.continued"),
        ContentDelta: EventName("inference", "content.delta"),
        ReasoningDelta: EventName("inference", "reasoning.delta"),
        ToolCallDelta: EventName("inference", "tool_call.delta"),
        ApprovalRequested: EventName("orchestrator", "approval.requested"),
        ApprovalResolved: EventName("orchestrator", "approval.resolved"),
        WaitBegan: EventName("orchestrator", "wait.began"),
        WaitEnded: EventName("orchestrator", "wait.ended"),
        SignalDropped: EventName("orchestrator", "signal.dropped"),
        ToolStart: EventName("tools", "tool.start"),
        ToolProgressed: EventName("tools", "tool.progress"),
        ToolEnd: EventName("tools", "tool.end"),
        ContextRetrieved: EventName("context", "context.retrieved"),
        ContextWeighed: EventName("inference", "context.weighed"),
        ValidationStage: EventName("constraint", "validation.stage"),
        RepairApplied: EventName("constraint", "repair.applied"),
    }
)

STREAMED = (ContentDelta, ReasoningDelta, ToolCallDelta, ToolProgressed)
PROGRESS = (InferenceEnd, ToolEnd, StepEnd, ContextRetrieved)  # completed work that a resume does not repeat


@dataclass(frozen=True, slots=True)
class Event:
    """The envelope of a payload.

    `sequence` has no gaps among stored events. A text delta repeats the sequence of the event before it.
    """

    correlation: CorrelationContext
    sequence: int
    timestamp: datetime
    layer: str
    action: str
    attempt: int
    payload: Payload
    duration_s: float | None = None
    failure: Failure | None = None
    tool_call_id: str = ""

    @property
    def is_stored(self) -> bool:
        """Whether the event belongs to the timeline. Streamed text does not."""
        return not isinstance(self.payload, STREAMED)


def count_idle_resumes(events: Sequence[Event]) -> int:
    """Return the number of times that an execution was resumed since its last progress."""
    count = 0
    for event in events:
        if isinstance(event.payload, Resumed):
            count += 1
        elif isinstance(event.payload, PROGRESS) and event.failure is None:
            count = 0
    return count
