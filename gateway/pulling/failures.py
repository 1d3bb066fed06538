"""The failures of pulls, each with its code; the command adds the next step."""

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
    """Return the failure of a source that cannot be reached, or is silent."""
    return Unavailable(message, code=ErrorCode.CONFIG_SOURCE_UNAVAILABLE)


def missing(message: str) -> NotFound:
    """Return the failure of a source without the file."""
    return NotFound(message, code=ErrorCode.CONFIG_MODEL_NOT_FOUND)


def corrupt(message: str) -> PreconditionFailed:
    """Return the failure of a file with unexpected content."""
    return PreconditionFailed(message, code=ErrorCode.CONFIG_MODEL_CORRUPT)


def no_space(message: str) -> PreconditionFailed:
    """Return the failure of a disk without room."""
    return PreconditionFailed(message, code=ErrorCode.CONFIG_NO_SPACE)


def no_hash(what: str) -> InvalidRequest:
    """Return the failure of a source that does not say the hash of its file, where the user does not either."""
    return InvalidRequest(f"{what} comes without a SHA-256: name the expected one with --sha256")


def of_status(status: int, what: str) -> PaganticError:
    """Return the failure that an HTTP status other than success means."""
    if status in _DENIED:
        return PermissionDenied(
            f"{what}: the source answers {status}: it does not exist, or you may not have it",
            code=ErrorCode.CONFIG_SOURCE_DENIED,
        )
    if status in _MISSING:
        return missing(f"{what}: the source has no such file")
    return unavailable(f"{what}: the source answers {status}")
