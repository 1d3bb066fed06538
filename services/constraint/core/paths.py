"""Formats paths in a JSON document as people write them, such as `a.b[0]`, and resolves references."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MAX_CHARS = 200
_QUOTED = frozenset(".[]\"' ")


def format_path(parts: Iterable[str | int]) -> str:
    """Format a path. Ambiguous keys are quoted: `a["x.y"]`. The path of the root is an empty string."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            part = shortened(part)  # noqa: PLW2901 - as it is shown
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part or not _QUOTED.isdisjoint(part):
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
        elif text:
            text += f".{part}"
        else:
            text = part
    return printable(text)


def resolve_reference(root: Any, reference: str) -> Any:
    """Return the value of the reference `#` or `#/…` in `root`; None for any other reference or a missing value."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    value = root
    for part in reference.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return None
    return value


def shortened(text: str) -> str:
    """Cut out the middle of a long text, because names and paths may be as long as a document."""
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[: MAX_CHARS // 2]}…{text[-MAX_CHARS // 2 :]}"


def printable(text: str) -> str:
    """Shorten the text and replace lone surrogates: JSON escapes can create them, but UTF-8 cannot encode them."""
    return shortened(text).encode(errors="replace").decode()
