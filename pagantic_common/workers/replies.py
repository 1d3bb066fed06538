"""What a worker process answers, as JSON: a process that runs hostile sources must not hand its service code to run.

The reply says nothing of types: the service reads a result as what the work is declared to return.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from pagantic_common.domain import errors
from pagantic_common.domain.errors import Failure, PaganticError

MAX_REPLY_BYTES = 16 * 1024 * 1024
_MAX_TRACEBACK_CHARS = 20_000
_RESULT, _ERROR, _UNEXPECTED, _TOO_LARGE = b"R", b"E", b"U", b"L"
_ERRORS: dict[str, type[PaganticError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PaganticError)
}


@dataclass(frozen=True, slots=True)
class _Told:
    """An error, by the name of its class."""

    kind: str
    failure: Failure
    retry_after_s: float | None


_TOLD = TypeAdapter(_Told)


class ReplyTooLarge(Exception):
    """The result has more than MAX_REPLY_BYTES."""


class WorkFailed(RuntimeError):
    """The work raised what is no PaganticError, or answered what it is not declared to return."""


@cache
def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    """Return what writes and reads the results of a function; values of JSON where it declares nothing."""
    try:
        hints = get_type_hints(function)
    except TypeError:  # written in C
        hints = {}
    return TypeAdapter(hints.get("return", Any))


def _adapter_of(work: Callable[..., Any]) -> TypeAdapter[Any]:
    return _adapter(getattr(work, "__func__", work))


def pack_result(work: Callable[..., Any], value: object) -> bytes:
    """Return the reply that gives a result; one that says so where it cannot be written or is too large."""
    try:
        result = _adapter_of(work).dump_json(value)
    except ValueError as error:
        return pack_error(RuntimeError(f"the result cannot be sent: {error}"))
    return _RESULT + result if len(result) <= MAX_REPLY_BYTES else _TOO_LARGE


def pack_error(error: BaseException) -> bytes:
    """Return the reply that gives an error."""
    if isinstance(error, PaganticError):
        try:
            return _ERROR + _TOLD.dump_json(_Told(type(error).__name__, error.failure, error.retry_after_s))
        except ValueError as refusal:
            return pack_error(RuntimeError(f"the error cannot be sent: {refusal}"))
    told = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
    return _UNEXPECTED + told.encode(errors="replace")


def unpack(work: Callable[..., Any], reply: bytes) -> Any:
    """Return the result of `work` that a reply gives, or raise the error that it gives.

    Raises ReplyTooLarge, and WorkFailed for an error that is none of ours or a reply that is none.
    """
    kind, body = reply[:1], reply[1:]
    try:
        if kind == _RESULT:
            return _adapter_of(work).validate_json(body)
        error = _error_of(_TOLD.validate_json(body)) if kind == _ERROR else None
    except (ValueError, KeyError):
        raise WorkFailed("a worker process gave a reply that cannot be read") from None
    if error is not None:
        raise error
    if kind == _TOO_LARGE:
        raise ReplyTooLarge
    raise WorkFailed(f"in a worker process:\n{body.decode(errors='replace')}")


def _error_of(told: _Told) -> PaganticError:
    return _ERRORS[told.kind](failure=told.failure, retry_after_s=told.retry_after_s)
