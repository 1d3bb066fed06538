"""Writes the rows of a query as JSON within limits on their number and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import dump_json


def rows_to_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], max_rows: int, max_bytes: int) -> str:
    """Return columns, rows and whether rows were left out; raises ToolFailed if even a single row does not fit."""
    names = dump_json([_text(name) for name in columns])
    written: list[str] = []
    left_bytes = max_bytes - len(names.encode()) - 64  # the keys around it
    is_truncated = False
    for row in rows:
        text = dump_json([_value(value) for value in row])
        left_bytes -= len(text.encode()) + 1
        if left_bytes < 0 or len(written) == max_rows:
            is_truncated = True
            break
        written.append(text)
    if is_truncated and not written:
        raise ToolFailed(f"one row has more than {max_bytes} bytes: select fewer columns, or cut them with substr")
    return f'{{"columns":{names},"rows":[{",".join(written)}],"is_truncated":{dump_json(is_truncated)}}}'


def _value(value: Any) -> Any:
    """Return a value that JSON has: bytes and infinite numbers become words."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    return value


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()
