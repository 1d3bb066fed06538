"""What an error of another service means to an execution."""

from __future__ import annotations

from pagantic_common.domain.errors import (
    ErrorCode,
    Failure,
    Internal,
    Overloaded,
    PaganticError,
    Unavailable,
    failure_of,
)

# Of the classes whose errors come without a code of their own. All others say that the request asks for what cannot be.
_CODES: dict[type[PaganticError], ErrorCode] = {
    Unavailable: ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
    Overloaded: ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED,
    Internal: ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED,
}


def failure_from(error: PaganticError) -> Failure:
    """Return the failure of an error; one without a code gets the code of what it means to the orchestrator."""
    if error.code is not None:
        return error.failure
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), ErrorCode.CONFIG_INVALID)
    return failure_of(code, error.failure.message, details=error.failure.details)


def is_outage(error: PaganticError) -> bool:
    """Tell whether a service could not answer for now; else it said that the request asks for what cannot be."""
    return isinstance(error, Unavailable | Overloaded | Internal)
