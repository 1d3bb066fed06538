"""The failure taxonomy and the exceptions that carry it, independent of any transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

MAX_CAUSES = 5


class ErrorCategory(StrEnum):
    """The parts of the system that failures belong to."""

    INFERENCE_FAILURE = "INFERENCE_FAILURE"
    TOOL_FAILURE = "TOOL_FAILURE"
    CONSTRAINT_FAILURE = "CONSTRAINT_FAILURE"
    VALIDATION_FAILURE = "VALIDATION_FAILURE"
    ORCHESTRATION_FAILURE = "ORCHESTRATION_FAILURE"
    CONFIGURATION_FAILURE = "CONFIGURATION_FAILURE"
    CANCELLATION = "CANCELLATION"
    ACCESS_FAILURE = "ACCESS_FAILURE"


class ErrorCode(StrEnum):
    """The reasons of failures. The names are stable."""

    INFERENCE_ENGINE_ERROR = "INFERENCE_ENGINE_ERROR"
    INFERENCE_MODEL_UNAVAILABLE = "INFERENCE_MODEL_UNAVAILABLE"
    INFERENCE_CONTEXT_EXCEEDED = "INFERENCE_CONTEXT_EXCEEDED"
    INFERENCE_MALFORMED_RESPONSE = "INFERENCE_MALFORMED_RESPONSE"
    INFERENCE_OVERLOADED = "INFERENCE_OVERLOADED"
    INFERENCE_OUTPUT_TRUNCATED = "INFERENCE_OUTPUT_TRUNCATED"
    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_INVALID_ARGUMENTS = "TOOL_INVALID_ARGUMENTS"
    TOOL_EXECUTION_FAILED = "TOOL_EXECUTION_FAILED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    TOOL_UNAVAILABLE = "TOOL_UNAVAILABLE"
    TOOL_DENIED = "TOOL_DENIED"
    TOOL_OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
    CONSTRAINT_GRAMMAR_INVALID = "CONSTRAINT_GRAMMAR_INVALID"
    CONSTRAINT_GRAMMAR_REJECTED = "CONSTRAINT_GRAMMAR_REJECTED"
    CONSTRAINT_SCHEMA_INVALID = "CONSTRAINT_SCHEMA_INVALID"
    CONSTRAINT_JSON_INVALID = "CONSTRAINT_JSON_INVALID"
    CONSTRAINT_ENUM_UNRECOGNIZED = "CONSTRAINT_ENUM_UNRECOGNIZED"
    CONSTRAINT_TOO_COMPLEX = "CONSTRAINT_TOO_COMPLEX"
    VALIDATION_RULE_FAILED = "VALIDATION_RULE_FAILED"
    VALIDATION_SEMANTIC_FAILED = "VALIDATION_SEMANTIC_FAILED"
    ORCHESTRATION_STEP_MISMATCH = "ORCHESTRATION_STEP_MISMATCH"
    ORCHESTRATION_ITERATION_LIMIT = "ORCHESTRATION_ITERATION_LIMIT"
    ORCHESTRATION_NO_CONSENSUS = "ORCHESTRATION_NO_CONSENSUS"
    ORCHESTRATION_PLAN_REJECTED = "ORCHESTRATION_PLAN_REJECTED"
    ORCHESTRATION_DEPENDENCY_UNAVAILABLE = "ORCHESTRATION_DEPENDENCY_UNAVAILABLE"
    ORCHESTRATION_DEPENDENCY_FAILED = "ORCHESTRATION_DEPENDENCY_FAILED"
    ORCHESTRATION_STEP_TIMEOUT = "ORCHESTRATION_STEP_TIMEOUT"
    ORCHESTRATION_NOT_ANSWERABLE = "ORCHESTRATION_NOT_ANSWERABLE"
    ORCHESTRATION_TURN_WAITING = "ORCHESTRATION_TURN_WAITING"
    CONFIG_NO_ENGINE = "CONFIG_NO_ENGINE"
    CONFIG_SCHEMA_REQUIRED = "CONFIG_SCHEMA_REQUIRED"
    CONFIG_GRAMMAR_NOT_FOUND = "CONFIG_GRAMMAR_NOT_FOUND"
    CONFIG_INVALID = "CONFIG_INVALID"
    CONFIG_MODEL_NOT_FOUND = "CONFIG_MODEL_NOT_FOUND"
    CONFIG_MODEL_CORRUPT = "CONFIG_MODEL_CORRUPT"
    CONFIG_NO_SPACE = "CONFIG_NO_SPACE"
    CONFIG_SOURCE_UNAVAILABLE = "CONFIG_SOURCE_UNAVAILABLE"
    CONFIG_SOURCE_DENIED = "CONFIG_SOURCE_DENIED"
    CANCELLED_TIMEOUT = "CANCELLED_TIMEOUT"
    CANCELLED_SIGNAL = "CANCELLED_SIGNAL"
    AUTH_MISSING = "AUTH_MISSING"
    AUTH_INVALID = "AUTH_INVALID"
    AUTH_EXPIRED = "AUTH_EXPIRED"
    AUTH_DENIED = "AUTH_DENIED"
    AUTH_POLICY = "AUTH_POLICY"
    QUOTA_RATE = "QUOTA_RATE"
    QUOTA_CONCURRENCY = "QUOTA_CONCURRENCY"
    QUOTA_BUDGET = "QUOTA_BUDGET"
    QUOTA_STORAGE = "QUOTA_STORAGE"
    GUARD_BLOCKED = "GUARD_BLOCKED"

    @property
    def category(self) -> ErrorCategory:
        """The category to which the code belongs."""
        return _CATEGORY_OF_PREFIX[self.value.split("_", 1)[0]]

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later.

        A tool's failure is retryable only if the tool is also idempotent.
        """
        return self not in _NEVER_RETRYABLE


_CATEGORY_OF_PREFIX = {
    "INFERENCE": ErrorCategory.INFERENCE_FAILURE,
    "TOOL": ErrorCategory.TOOL_FAILURE,
    "CONSTRAINT": ErrorCategory.CONSTRAINT_FAILURE,
    "VALIDATION": ErrorCategory.VALIDATION_FAILURE,
    "ORCHESTRATION": ErrorCategory.ORCHESTRATION_FAILURE,
    "CONFIG": ErrorCategory.CONFIGURATION_FAILURE,
    "CANCELLED": ErrorCategory.CANCELLATION,
    "AUTH": ErrorCategory.ACCESS_FAILURE,
    "QUOTA": ErrorCategory.ACCESS_FAILURE,
    "GUARD": ErrorCategory.ACCESS_FAILURE,
}

_NEVER_RETRYABLE = frozenset(
    {
        ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
        ErrorCode.INFERENCE_OUTPUT_TRUNCATED,
        ErrorCode.TOOL_NOT_FOUND,
        ErrorCode.TOOL_INVALID_ARGUMENTS,
        ErrorCode.TOOL_DENIED,
        ErrorCode.TOOL_OUTCOME_UNKNOWN,
        ErrorCode.CONSTRAINT_GRAMMAR_INVALID,
        ErrorCode.CONSTRAINT_TOO_COMPLEX,
        ErrorCode.ORCHESTRATION_STEP_MISMATCH,
        ErrorCode.ORCHESTRATION_ITERATION_LIMIT,
        ErrorCode.ORCHESTRATION_NO_CONSENSUS,
        ErrorCode.ORCHESTRATION_PLAN_REJECTED,
        ErrorCode.ORCHESTRATION_NOT_ANSWERABLE,
        ErrorCode.ORCHESTRATION_TURN_WAITING,
        ErrorCode.CONFIG_NO_ENGINE,
        ErrorCode.CONFIG_SCHEMA_REQUIRED,
        ErrorCode.CONFIG_GRAMMAR_NOT_FOUND,
        ErrorCode.CONFIG_INVALID,
        ErrorCode.CONFIG_MODEL_NOT_FOUND,
        ErrorCode.CONFIG_MODEL_CORRUPT,
        ErrorCode.CONFIG_NO_SPACE,
        ErrorCode.CONFIG_SOURCE_DENIED,
        ErrorCode.CANCELLED_TIMEOUT,
        ErrorCode.CANCELLED_SIGNAL,
        ErrorCode.AUTH_MISSING,
        ErrorCode.AUTH_INVALID,
        ErrorCode.AUTH_EXPIRED,
        ErrorCode.AUTH_DENIED,
        ErrorCode.AUTH_POLICY,
        ErrorCode.QUOTA_BUDGET,
        ErrorCode.QUOTA_STORAGE,
        ErrorCode.GUARD_BLOCKED,
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as a value. The contract's name for it, SystemError, is a built-in exception in Python.

    `code` is None only for failures without a code in the taxonomy, such as an unknown session.
    """

    code: ErrorCode | None
    message: str
    retryable: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    caused_by: tuple[Failure, ...] = ()

    @property
    def category(self) -> ErrorCategory | None:
        """The category to which the code belongs."""
        if self.code is None:
            return None
        return self.code.category

    def because_of(self, cause: Failure) -> Failure:
        """Return this failure, caused by `cause` and its causes, the nearest first. At most five causes are kept."""
        chain = (replace(cause, caused_by=()), *cause.caused_by)
        return replace(self, caused_by=chain[:MAX_CAUSES])


def failure_of(
    code: ErrorCode,
    message: str,
    *,
    details: Mapping[str, Any] | None = None,
    tool_is_idempotent: bool = False,
) -> Failure:
    """Make a failure with the retryable flag from the taxonomy."""
    retryable = code.is_retryable
    if code.category is ErrorCategory.TOOL_FAILURE:
        retryable = retryable and tool_is_idempotent
    return Failure(code=code, message=message, retryable=retryable, details=dict(details or {}))


class PaganticError(Exception):
    """Base of all errors that cross a service boundary.

    The class determines the caller's next step; the code is the reason.

    Args:
        message: A text in lower case, with identifiers in `!r`, limits with units, and neither prompts nor secrets.
        code: The taxonomy's code; None selects the default of the class.
        failure: A whole failure, given instead of the other arguments.
        details: Details that can be written as JSON.
        retry_after_s: Time until a retry makes sense, in seconds.
    """

    default_code: ClassVar[ErrorCode | None] = None

    def __init__(
        self,
        message: str = "",
        *,
        code: ErrorCode | None = None,
        failure: Failure | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        if failure is None:
            code = code or self.default_code
            if code is None:
                failure = Failure(code=None, message=message, details=dict(details or {}))
            else:
                failure = failure_of(code, message, details=details)
        super().__init__(failure.message)
        self.failure = failure
        self.retry_after_s = retry_after_s

    @property
    def code(self) -> ErrorCode | None:
        """The code from the taxonomy, or None if the failure is outside it."""
        return self.failure.code


class InvalidRequest(PaganticError):
    """The request is invalid. The caller must change it."""

    default_code = ErrorCode.CONFIG_INVALID


class MessageTooLarge(InvalidRequest):
    """The transport refused a message because of its size."""


class NotFound(PaganticError):
    """The request names an object that does not exist."""


class PreconditionFailed(PaganticError):
    """The request requires another state of the system. The caller must change that state first."""


class Conflict(PaganticError):
    """The request would create an object that already exists and differs."""


class Aborted(PaganticError):
    """Other work prevents the request. The caller may resend the request after that work has ended."""


class Unauthenticated(PaganticError):
    """The caller is unknown, and must send other credentials."""

    default_code = ErrorCode.AUTH_INVALID


class PermissionDenied(PaganticError):
    """A policy forbids the request."""


class Overloaded(PaganticError):
    """The service is overloaded. The caller may retry after `retry_after_s`."""


class Unavailable(PaganticError):
    """A service or model cannot be reached. The caller may retry, or try elsewhere."""


class Unreachable(Unavailable):
    """No service answered: the status comes from the transport."""


class NotSent(Unreachable):
    """The call was not made, because the service cannot be reached."""


class DeadlineExceeded(PaganticError):
    """The deadline passed."""

    default_code = ErrorCode.CANCELLED_TIMEOUT


class Cancelled(PaganticError):
    """The caller cancelled the call or disconnected."""

    default_code = ErrorCode.CANCELLED_SIGNAL


class Unsupported(PaganticError):
    """The service does not support the request."""


class Internal(PaganticError):
    """The service failed, and the caller is not the cause."""
