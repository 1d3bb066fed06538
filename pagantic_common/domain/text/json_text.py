"""JSON as the system reads and writes it: strict, bounded in depth, without rounding of integers."""

from __future__ import annotations

import json
import math
from typing import Any


class JsonTextError(ValueError):
    """The text is not JSON; the message says where."""


def _reject_constant(name: str) -> Any:
    raise JsonTextError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise JsonTextError(f"the number {text[:40]} is too large")
    return value


def parse_json(text: str, *, is_rewritable: bool = False) -> Any:
    """Parse strict JSON (RFC 8259: no NaN, no Infinity); raises JsonTextError, with line and column.

    Rewritable JSON can be written again as UTF-8: no number beyond a double, no half of a surrogate pair.
    """
    try:
        parse_float = _finite_float if is_rewritable else None
        value = json.loads(text, parse_constant=_reject_constant, parse_float=parse_float)
        if is_rewritable and "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise JsonTextError(f"line {error.lineno} column {error.colno}: {error.msg.lower()}") from None
    except UnicodeEncodeError:
        raise JsonTextError("an escape gives half of a surrogate pair") from None
    except RecursionError:
        raise JsonTextError("nested too deeply") from None
    except ValueError as error:  # an integer of more digits than Python converts
        if isinstance(error, JsonTextError):
            raise
        raise JsonTextError("an integer has too many digits") from None
    return value


def dump_json(value: Any) -> str:
    """Write compact JSON, keys in their order, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
