"""The response to a request, and its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from pagantic_common.domain.errors import ErrorCategory, ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Guarantee, StageReport, Violation
from services.orchestrator.core.model.decision import Decision
from services.orchestrator.core.model.plan import Plan, StepResult
from services.orchestrator.core.model.request import ExperimentVariant
from services.orchestrator.core.model.response_warning import ResponseWarning


class FinishReason(StrEnum):
    """The reason that an inference ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL = "tool"
    ERROR = "error"
    CANCELLED = "cancelled"


class ConfidenceSource(StrEnum):
    """The origin of a response's confidence."""

    UNSPECIFIED = "UNSPECIFIED"
    VOTING = "VOTING"
    VALIDATION = "VALIDATION"
    RETRIEVAL = "RETRIEVAL"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its bytes, and the natural logarithm of its probability. `top` has the most likely alternatives.

    `piece` has one character per byte (Latin-1), because part of a character is not text and the journal stores text.
    """

    token: int
    piece: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """A call that a guard blocked, and the failure that explains why. The arguments of the call are not kept."""

    call_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class WrongCall:
    """A call of a caller-run tool, with arguments that violate the tool's schema."""

    call_id: str
    message: str


@dataclass(frozen=True, slots=True)
class InferenceOutput:
    """The output of one inference.

    `model` is the alias that served the inference, and `seed` is the seed of its random stream. `not_in_sources` is the
    probability of an abstention in place of claims, or None if it is unknown. Decisions have no content. If the output
    was stopped at its size limit, the finish reason is LENGTH and `max_bytes` is the limit. Otherwise `max_bytes` is 0.
    `matched_stop` is the stop string that ended the output, or empty. `calls_held` is set if there are tool calls and
    the decoder constrained each call's arguments to the tool's schema.
    """

    content: str
    finish_reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    constraint_satisfied: bool = False
    usage: TokenUsage = TokenUsage()
    reasoning: str = ""
    model: str = ""
    seed: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    not_in_sources: float | None = None
    decisions: tuple[Decision, ...] = ()
    blocked_calls: tuple[BlockedCall, ...] = ()
    max_bytes: int = 0
    matched_stop: str = ""
    calls_held: bool = False


@dataclass(frozen=True, slots=True)
class Citation:
    """A claim of an answer, and its quote: the characters of the document from `start` to `end`.

    `source` is the number of the chunk, counted from 1, and `document` is the chunk's source. A `page` of 0 means that
    the page is unknown.
    """

    claim: str
    source: int
    document: str
    page: int
    start: int
    end: int
    quote: str
    guarantee: Guarantee


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """The next piece of a call.

    `index` is the position of the call in the turn. The first piece of a call has `id` and `name`.
    """

    index: int
    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class InferenceDelta:
    """The next text of an inference, the next pieces of its calls, and its usage so far.

    The first delta has no text, and `is_remote` is set in it if another system runs the model.
    `continued_after_tokens` is set in the first delta of a replica that continues the answer of a lost replica.
    """

    content: str = ""
    reasoning: str = ""
    usage: TokenUsage = TokenUsage()
    model: str = ""
    seed: int | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()
    continued_after_tokens: int | None = None
    is_remote: bool = False


@dataclass(frozen=True, slots=True)
class CandidateOutput:
    """The output of one of several candidates. Its usage excludes the prompt."""

    index: int
    output: InferenceOutput


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """A tool call that ran. `is_retryable` is set if the call failed and a retry may succeed.

    `warnings` come from the guards that checked its arguments and its result.
    """

    id: str
    name: str
    arguments_json: str
    result: str
    is_error: bool
    error_code: ErrorCode | None
    duration_s: float
    is_retryable: bool = False
    warnings: tuple[ResponseWarning, ...] = ()

    @property
    def is_unknown_tool(self) -> bool:
        """Whether the called tool does not exist, so that nothing ran."""
        return self.error_code is ErrorCode.TOOL_NOT_FOUND

    @property
    def failure(self) -> Failure | None:
        """The failure of the call, or None if the call succeeded."""
        if not self.is_error:
            return None
        failed = failure_of(self.error_code or ErrorCode.TOOL_EXECUTION_FAILED, self.result)
        return replace(failed, retryable=self.is_retryable)


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The findings of validation over all attempts."""

    checks_passed: int
    checks_failed: int
    repair_attempts: int
    remaining_violations: tuple[Violation, ...]
    guarantee: Guarantee
    warnings: tuple[str, ...] = ()
    stages: tuple[StageReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """The output of one replica, and the number of its votes. A replica with a failure abstained."""

    replica_index: int
    content: str = ""
    structured_output_json: str = ""
    votes: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The response to the caller.

    `earlier_content` is the text streamed before the content, with calls of the deployment's tools. `matched_stop` is
    the stop string that ended the answer, or empty.
    """

    request_id: str
    session_id: str
    content: str = ""
    structured_output_json: str = ""
    tool_calls_made: tuple[ToolCallRecord, ...] = ()
    confidence: float | None = None
    confidence_source: ConfidenceSource = ConfidenceSource.UNSPECIFIED
    validation: ValidationReport | None = None
    candidates: tuple[Candidate, ...] = ()
    step_results: tuple[StepResult, ...] = ()
    usage: TokenUsage = TokenUsage()
    failure: Failure | None = None
    finish_reason: FinishReason | None = None
    reasoning: str = ""
    warnings: tuple[ResponseWarning, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    seed: int | None = None
    plan: Plan | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    citations: tuple[Citation, ...] = ()
    not_in_sources: float | None = None
    decisions: tuple[Decision, ...] = ()
    variant: ExperimentVariant | None = None
    earlier_content: str = ""
    matched_stop: str = ""

    @property
    def may_run_again(self) -> bool:
        """Whether the execution runs again if the same request is sent again.

        This applies if the execution was cancelled or if its failure is retryable.
        """
        failure = self.failure
        return failure is not None and (failure.retryable or failure.category is ErrorCategory.CANCELLATION)
