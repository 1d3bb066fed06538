"""Keys that an object has more than once: which value counts is up to the reader, so only the last one is kept.

Only the earlier members are cut out of the text, so number text, key order and white space stay.
"""

from __future__ import annotations

import json
from typing import Any

from services.constraint.core.lexemes import LEXEME


class _Object:
    """An object that is open: where its members start."""

    def __init__(self) -> None:
        self.starts: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.last: str | None = None
        self.is_key_next = True


def without_repeated_keys(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a JSON text with the last member of each key of an object, and the keys that were repeated, in order."""
    if not _has_repeated_keys(text):
        return text, ()
    cuts, keys = _find_repeated(text)
    pieces, end = [], 0
    for start, stop in sorted(cuts):
        if start >= end:  # a later start would lie inside an earlier cut
            pieces.append(text[end:start])
            end = stop
    return "".join([*pieces, text[end:]]), tuple(dict.fromkeys(keys))


def _has_repeated_keys(text: str) -> bool:
    is_found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal is_found
        is_found |= len(dict(pairs)) < len(pairs)

    json.loads(text, parse_float=str, object_pairs_hook=look)
    return is_found


def _find_repeated(text: str) -> tuple[list[tuple[int, int]], list[str]]:
    """Return the spans of the members that do not count, each up to the next member's key, and their keys."""
    cuts: list[tuple[int, int]] = []
    keys: list[str] = []
    open_containers: list[_Object | None] = []  # None: an array
    for match in LEXEME.finditer(text):
        lexeme = match.group()
        container = open_containers[-1] if open_containers else None
        if lexeme in "{[":
            open_containers.append(_Object() if lexeme == "{" else None)
        elif lexeme in "}]":
            open_containers.pop()
        elif container is None:
            continue
        elif lexeme == ",":
            container.is_key_next = True
        elif lexeme[0] == '"' and container.is_key_next:
            key, start = json.loads(lexeme), match.start()
            if container.last is not None:
                container.ends[container.last] = start
            if key in container.starts:
                cuts.append((container.starts[key], container.ends[key]))
                keys.append(key)
            container.starts[key], container.last, container.is_key_next = start, key, False
    return cuts, keys
