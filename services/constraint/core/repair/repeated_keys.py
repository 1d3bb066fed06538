"""Removes repeated keys from objects. Parsers disagree on the value that counts, so only the last member is kept.

Only the earlier members are cut out of the text. Numbers, the order of keys and white space stay unchanged.
"""

from __future__ import annotations

import json
from typing import Any

from services.constraint.core.repair.lexemes import LEXEME

Span = tuple[int, int]


class _Object:
    """An open object, with the start and the end of each of its members."""

    def __init__(self) -> None:
        self.starts: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.last: str | None = None
        self.is_key_next = True

    def start_member(self, key: str, start: int) -> Span | None:
        """Record a new member. Returns the span of an earlier member with the same key, or None."""
        if self.last is not None:
            self.ends[self.last] = start
        earlier = None
        if key in self.starts:
            earlier = (self.starts[key], self.ends[key])
        self.starts[key] = start
        self.last = key
        self.is_key_next = False
        return earlier


def without_repeated_keys(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the JSON text with only the last member of each key in an object, and the repeated keys in order."""
    if not _has_repeated_keys(text):
        return text, ()
    cuts, keys = _find_repeated(text)
    pieces = []
    end = 0
    for start, stop in sorted(cuts):
        if start >= end:  # a smaller start lies inside the previous cut
            pieces.append(text[end:start])
            end = stop
    return "".join([*pieces, text[end:]]), tuple(dict.fromkeys(keys))


def _has_repeated_keys(text: str) -> bool:
    is_found = False

    def note_repetition(pairs: list[tuple[str, Any]]) -> None:
        nonlocal is_found
        is_found |= len(dict(pairs)) < len(pairs)

    json.loads(text, parse_float=str, object_pairs_hook=note_repetition)
    return is_found


def _find_repeated(text: str) -> tuple[list[Span], list[str]]:
    """Return the spans of the members to remove, each ending at the key of the next member, and the members' keys."""
    cuts: list[Span] = []
    keys: list[str] = []
    open_containers: list[_Object | None] = [None]  # None stands for an array or the top level
    for match in LEXEME.finditer(text):
        lexeme = match.group()
        container = open_containers[-1]
        if lexeme == "{":
            open_containers.append(_Object())
        elif lexeme == "[":
            open_containers.append(None)
        elif lexeme in "}]":
            open_containers.pop()
        elif container is None:
            continue
        elif lexeme == ",":
            container.is_key_next = True
        elif container.is_key_next and lexeme[0] == '"':
            key = json.loads(lexeme)
            if span := container.start_member(key, match.start()):
                cuts.append(span)
                keys.append(key)
    return cuts, keys
