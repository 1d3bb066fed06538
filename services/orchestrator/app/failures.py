"""Maps errors of other services to failures of an execution."""

from __future__ import annotations

import time

from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Failure,
    Internal,
    Overloaded,
    PaganticError,
    Unavailable,
    failure_of,
)
from pagantic_common.telemetry.scope import current_deadline

DEADLINE_SLACK_S = 0.1  # tolerance for other hosts' clocks and for gRPC's rounding

# Codes for error classes without a code. Any other class means that the request is invalid.
_CODES: dict[type[PaganticError], ErrorCode] = {
    Unavailable: ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
    Overloaded: ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED,
    Internal: ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED,
}

# Codes with which a service rejects the orchestrator's credentials, over which the caller has no control.
_REFUSALS = {ErrorCode.AUTH_MISSING, ErrorCode.AUTH_INVALID, ErrorCode.AUTH_EXPIRED, ErrorCode.AUTH_DENIED}


def failure_from(error: PaganticError) -> Failure:
    """Return the failure of an error. An error without a code gets the orchestrator's code for its class."""
    if _is_own_timeout(error):
        return failure_of(ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED, error.failure.message)
    if error.code in _REFUSALS:
        message = f"another service refused the orchestrator: {error.failure.message}"
        return failure_of(ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED, message)
    if error.code is not None:
        return error.failure
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), ErrorCode.CONFIG_INVALID)
    return failure_of(code, error.failure.message, details=error.failure.details)


def optional_failure_from(error: PaganticError | None) -> Failure | None:
    """Return the failure of an error, or None if there is no error."""
    if error is None:
        return None
    return failure_from(error)


def error_from(error: PaganticError) -> PaganticError:
    """Return the error with its mapped failure for a caller outside an execution."""
    kind = type(error)
    if error.code in _REFUSALS:
        kind = Internal
    return kind(failure=failure_from(error), retry_after_s=error.retry_after_s)


def is_outage(error: PaganticError) -> bool:
    """Return whether an error is a temporary failure of a service, rather than an impossible request."""
    if error.code in _REFUSALS:
        return True
    return isinstance(error, Unavailable | Overloaded | Internal) or _is_own_timeout(error)


def is_excused(error: PaganticError) -> bool:
    """Return whether an error permits skipping optional work: an outage, or a text too long for the model."""
    return is_outage(error) or error.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED


def _is_own_timeout(error: PaganticError) -> bool:
    """Return whether a service reached its own time limit while the request still had time."""
    is_timeout = isinstance(error, DeadlineExceeded) and error.code is ErrorCode.CANCELLED_TIMEOUT
    return is_timeout and not current_deadline().has_passed(time.monotonic() + DEADLINE_SLACK_S)
