"""JSON as the system reads and writes it: strict, bounded in depth, without rounding of integers."""

from __future__ import annotations

import json
from typing import Any


class JsonTextError(ValueError):
    """The text is not JSON; the message says where."""


def _reject_constant(name: str) -> Any:
    raise JsonTextError(f"{name} is not JSON")


def parse_json(text: str) -> Any:
    """Parse strict JSON (RFC 8259: no NaN, no Infinity); raises JsonTextError, with line and column."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise JsonTextError(f"line {error.lineno} column {error.colno}: {error.msg.lower()}") from None
    except RecursionError:
        raise JsonTextError("nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python converts
        if isinstance(error, JsonTextError):
            raise
        raise JsonTextError(str(error)) from None


def dump_json(value: Any) -> str:
    """Write compact JSON, keys in their order, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
