"""JSON as the system reads and writes it: strict, limited in depth, and without rounding of integers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

# The maximum depth of nested lists and objects. Python's own limit depends on its version and on the caller's stack.
# This limit leaves room for recursive code that uses two frames per level.
MAX_DEPTH = 256
_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class JsonTextError(ValueError):
    """The text is not valid JSON. The message states the position or the reason."""


def _reject_constant(name: str) -> Any:
    raise JsonTextError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise JsonTextError(f"the number {text[:40]} is too large")
    return value


def parse_json(text: str, *, is_rewritable: bool = False) -> Any:
    """Parse strict JSON (RFC 8259: no NaN, no Infinity). Raises JsonTextError, with line and column.

    Rewritable JSON can be written again as UTF-8: it has no number that exceeds a double, and no lone surrogate.
    """
    try:
        parse_float = _finite_float if is_rewritable else None
        value = json.loads(text, parse_constant=_reject_constant, parse_float=parse_float)
        if is_rewritable and "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(value)
    except json.JSONDecodeError as error:
        raise JsonTextError(f"line {error.lineno} column {error.colno}: {error.msg.lower()}") from None
    except UnicodeEncodeError:
        raise JsonTextError("an escape gives half of a surrogate pair") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # An integer has too many digits for Python to convert.
        if isinstance(error, JsonTextError):
            raise
        raise JsonTextError("an integer has too many digits") from None
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for parent in level for item in _containers(parent)]
        if not level:
            return
    raise _too_deep()


def _containers(parent: Any) -> list[Any]:
    children: Iterable[Any] = ()
    if isinstance(parent, dict):
        children = parent.values()
    elif isinstance(parent, list):
        children = parent
    return [child for child in children if isinstance(child, dict | list)]


def _too_deep() -> JsonTextError:
    return JsonTextError(f"nested too deeply: at most {MAX_DEPTH} levels are taken")


def dump_json(value: Any) -> str:
    """Write compact JSON. Keys keep their order, and characters stay unescaped where possible."""
    return _write(value)
