"""Bodies of requests, and parameters in their paths and queries."""

from __future__ import annotations

from typing import Any

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json


def read_object(body: bytes) -> dict[str, Any]:
    """Return the value of a body; raises InvalidRequest for one that is no JSON object."""
    try:
        value = parse_json(body.decode(), is_rewritable=True)
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None
    except JsonTextError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body is no JSON object")
    return value


def read_count(name: str, text: str, *, otherwise: int, most: int) -> int:
    """Return a parameter that is a number from 0 on; raises InvalidRequest for one that is not."""
    if not text:
        return otherwise
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
        raise InvalidRequest(f"{name} is {text[:32]!r}: send a number from 0 to {most}")
    return int(text)
