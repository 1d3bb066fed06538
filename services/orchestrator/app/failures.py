"""What an error of another service means to an execution."""

from __future__ import annotations

from pagantic_common.domain.errors import ErrorCode, Failure, InvalidRequest, PaganticError, Unsupported, failure_of


def failure_from(error: PaganticError) -> Failure:
    """Return the failure of an error; one without a code gets the code of what it means to the orchestrator."""
    if error.code is not None:
        return error.failure
    is_config = isinstance(error, Unsupported | InvalidRequest)
    code = ErrorCode.CONFIG_INVALID if is_config else ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
    return failure_of(code, error.failure.message, details=error.failure.details)
