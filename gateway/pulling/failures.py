"""Creates the failures of pulls, with their codes. The command adds the next step."""

from __future__ import annotations

from pagantic_common.domain.errors import (
    ErrorCode,
    InvalidRequest,
    NotFound,
    PaganticError,
    PermissionDenied,
    PreconditionFailed,
    Unavailable,
)

_DENIED = (401, 403)
_MISSING = (404, 410)


def unavailable(message: str) -> Unavailable:
    """Return the failure for a source that cannot be reached or does not respond."""
    return Unavailable(message, code=ErrorCode.CONFIG_SOURCE_UNAVAILABLE)


def missing(message: str) -> NotFound:
    """Return the failure for a source that does not have the file."""
    return NotFound(message, code=ErrorCode.CONFIG_MODEL_NOT_FOUND)


def corrupt(message: str) -> PreconditionFailed:
    """Return the failure for a file with unexpected content."""
    return PreconditionFailed(message, code=ErrorCode.CONFIG_MODEL_CORRUPT)


def no_space(message: str) -> PreconditionFailed:
    """Return the failure for a disk with too little space."""
    return PreconditionFailed(message, code=ErrorCode.CONFIG_NO_SPACE)


def no_hash(what: str) -> InvalidRequest:
    """Return the failure for a file without a hash from the source or the user."""
    return InvalidRequest(f"{what} comes without a SHA-256: name the expected one with --sha256")


def of_status(status: int, what: str) -> PaganticError:
    """Return the failure for an HTTP status other than success."""
    if status in _DENIED:
        return PermissionDenied(
            f"{what}: the source answers {status}: it does not exist, or you may not have it",
            code=ErrorCode.CONFIG_SOURCE_DENIED,
        )
    if status in _MISSING:
        return missing(f"{what}: the source has no such file")
    return unavailable(f"{what}: the source answers {status}")
