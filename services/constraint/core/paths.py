"""Places in a JSON document, as people write them: `a.b[0]`."""

from __future__ import annotations

import json
from collections.abc import Iterable

_QUOTED = frozenset(".[]\"' ")


def format_path(parts: Iterable[str | int]) -> str:
    """Write a path; keys that would be ambiguous are quoted: `a["x.y"]`. The root is empty."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part or not _QUOTED.isdisjoint(part):
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
        else:
            text += f".{part}" if text else part
    return printable(text)


def printable(text: str) -> str:
    """Replace lone surrogates, which JSON's escapes can make and no text can carry."""
    return text.encode(errors="replace").decode()
