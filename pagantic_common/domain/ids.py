"""Checks the form of ids, tool names and texts. Ids have a small alphabet because they travel as metadata."""

from __future__ import annotations

import re

from pagantic_common.domain.errors import InvalidRequest

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


def is_id(value: str) -> bool:
    """Return whether `value` is a valid request, session or tool call id."""
    return _ID.fullmatch(value) is not None


def is_trace_id(value: str) -> bool:
    """Return whether `value` is a W3C trace id: 32 lower-case hex digits, not all zero."""
    return _TRACE_ID.fullmatch(value) is not None


def require_id(field: str, value: str) -> str:
    """Return `value`. Raises InvalidRequest, naming `field`, if it is not a valid id."""
    if not is_id(value):
        raise InvalidRequest(f"{field} {value[:140]!r} does not match [A-Za-z0-9._:-]{{1,128}}")
    return value


def check_tool_name(name: str) -> None:
    """Raise InvalidRequest if a tool cannot have this name.

    Names are limited because models and their templates write them unquoted.
    """
    if _TOOL_NAME.fullmatch(name) is None:
        raise InvalidRequest(f"tool name {name[:80]!r} does not match [A-Za-z0-9_-]{{1,64}}")


def require_printable(field: str, text: str, max_chars: int) -> None:
    """Raise InvalidRequest, naming the field, if a text is too long or has unprintable characters."""
    if len(text) > max_chars or not text.isprintable():
        raise InvalidRequest(f"{field} must be at most {max_chars} printable characters")
