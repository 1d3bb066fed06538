"""Replies of a worker process as JSON, because a process that handles hostile sources must not send code to run.

A reply does not name types. The service reads a result as the declared return type of the work.
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

MAX_REPLY_BYTES = 16 * 1024 * 1024  # The limit for a result. The byte before it names the kind of the reply.
# The first message of a process. Any other message is the reason why the process cannot work.
READY, READY_WITHOUT_LANDLOCK = b"ready", b"ready without landlock"
MAX_GREETING_BYTES = 4096
_MAX_TRACEBACK_CHARS = 20_000
_RESULT, _ERROR, _UNEXPECTED, _TOO_LARGE = b"R", b"E", b"U", b"L"
_ERRORS: dict[str, type[PaganticError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PaganticError)
}


@dataclass(frozen=True, slots=True)
class _SentError:
    """An error, with the name of its class."""

    kind: str
    failure: Failure
    retry_after_s: float | None


_SENT_ERROR = TypeAdapter(_SentError)


class ReplyTooLarge(Exception):
    """The result is larger than MAX_REPLY_BYTES."""


class WorkFailed(RuntimeError):
    """The work raised an error other than a PaganticError, or its reply does not fit the declared return type."""


@cache
def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    """Return the adapter for the return type of a function, or for any JSON value if the function declares no type."""
    try:
        hints = get_type_hints(function)
    except TypeError:  # The function is written in C.
        hints = {}
    return TypeAdapter(hints.get("return", Any))


def _adapter_of(work: Callable[..., Any]) -> TypeAdapter[Any]:
    return _adapter(getattr(work, "__func__", work))


def pack_result(work: Callable[..., Any], value: object) -> bytes:
    """Return a reply with the result, or with an error if the result cannot be written or is too large."""
    try:
        result = _adapter_of(work).dump_json(value)
    except ValueError as error:
        return pack_error(RuntimeError(f"the result cannot be sent: {error}"))
    if len(result) > MAX_REPLY_BYTES:
        return _TOO_LARGE
    return _RESULT + result


def pack_error(error: BaseException) -> bytes:
    """Return a reply with the error."""
    if isinstance(error, PaganticError):
        try:
            return _ERROR + _SENT_ERROR.dump_json(_SentError(type(error).__name__, error.failure, error.retry_after_s))
        except ValueError as refusal:
            return pack_error(RuntimeError(f"the error cannot be sent: {refusal}"))
    text = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
    return _UNEXPECTED + text.encode(errors="replace")


def unpack(work: Callable[..., Any], reply: bytes) -> Any:
    """Return the result of `work` in a reply, or raise the error in the reply.

    Raises ReplyTooLarge for a result that is too large, and WorkFailed for an unexpected error or an unreadable reply.
    """
    kind, body = reply[:1], reply[1:]
    if kind == _TOO_LARGE:
        raise ReplyTooLarge
    if kind == _ERROR:
        raise _read_error(body)
    if kind != _RESULT:
        raise WorkFailed(f"in a worker process:\n{body.decode(errors='replace')}")
    try:
        return _adapter_of(work).validate_json(body)
    except ValueError:
        raise _unreadable() from None


def _read_error(body: bytes) -> PaganticError:
    try:
        sent = _SENT_ERROR.validate_json(body)
        return _ERRORS[sent.kind](failure=sent.failure, retry_after_s=sent.retry_after_s)
    except (ValueError, KeyError):
        raise _unreadable() from None


def _unreadable() -> WorkFailed:
    return WorkFailed("a worker process gave a reply that cannot be read")
