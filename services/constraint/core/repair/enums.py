"""Rewrites enum values that differ from their declared form only in case.

Only the changed strings are replaced in the text. Numbers, the order of keys and white space stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from services.constraint.core.paths import format_path, resolve_reference
from services.constraint.core.repair.json_repair import is_json
from services.constraint.core.repair.lexemes import LEXEME

MAX_SCHEMAS_PER_PLACE = 64

Path = tuple[str | int, ...]
Schemas = tuple[dict[str, Any], ...]


def normalize_enums(document_text: str, schema: dict[str, Any] | bool) -> tuple[str, tuple[str, ...]]:
    """Return the document and the changed paths. A text that is not JSON is returned unchanged.

    A value that any applicable enum declares stays. Any other value is replaced by its case-insensitive match if there
    is exactly one.
    """
    if not isinstance(schema, dict) or not is_json(document_text):
        return document_text, ()
    places = _Places(schema)
    pieces: list[str] = []
    changed: list[str] = []
    end = 0
    for path, start, stop in _string_values(document_text):
        declared = _declared_form(json.loads(document_text[start:stop]), places.schemas_at(path))
        if declared is not None:
            pieces += [document_text[end:start], json.dumps(declared, ensure_ascii=False)]
            end = stop
            changed.append(format_path(path))
    return "".join([*pieces, document_text[end:]]), tuple(changed)


def _declared_form(value: str, schemas: Schemas) -> str | None:
    """Return the enum value that replaces this value, or None to keep the value."""
    options = {option for schema in schemas for option in _declared_texts(schema)}
    if value in options:
        return None
    folded = value.casefold()
    matches = [option for option in options if option.casefold() == folded]
    if len(matches) != 1:
        return None
    return matches[0]


def _declared_texts(schema: dict[str, Any]) -> list[str]:
    declared = [schema.get("const")]
    if isinstance(schema.get("enum"), list):
        declared += schema["enum"]
    return [option for option in declared if isinstance(option, str)]


def _string_values(text: str) -> Iterator[tuple[Path, int, int]]:
    """Yield the path and the span of every string value of a valid document in order."""
    path: list[str | int | None] = []  # the current key or index of each open container, or None before a key
    for match in LEXEME.finditer(text):
        lexeme = match.group()
        if lexeme in _FIRST_MEMBER:
            path.append(_FIRST_MEMBER[lexeme])
        elif lexeme in "}]":
            path.pop()
        elif lexeme == ",":
            path[-1] = _next_member(path[-1])
        elif lexeme[0] != '"':
            continue
        elif path and path[-1] is None:
            path[-1] = json.loads(lexeme)
        else:
            yield tuple(part for part in path if part is not None), match.start(), match.end()


_FIRST_MEMBER = {"{": None, "[": 0}


def _next_member(member: str | int | None) -> int | None:
    if isinstance(member, int):
        return member + 1
    return None


class _Places:
    """The subschemas that apply at each path. They are cached by path, because paths recur in documents."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.known: dict[Path, Schemas] = {(): self.expand([root])}

    def schemas_at(self, path: Path) -> Schemas:
        """Return the subschemas that apply at a path."""
        place = tuple(part if isinstance(part, str) or part < _MAX_DISTINCT_ITEMS else -1 for part in path)
        schemas = self.known[()]
        for depth, part in enumerate(place, start=1):
            prefix = place[:depth]
            applicable = self.known.get(prefix)
            if applicable is None:
                applicable = self.known[prefix] = self.expand(_children(schemas, part))
            schemas = applicable
            if not schemas:
                break
        return schemas

    def expand(self, schemas: Iterable[Any]) -> Schemas:
        """Follow local references and combinations. Returns each subschema once."""
        applicable: dict[int, dict[str, Any]] = {}
        waiting = list(schemas)
        while waiting and len(applicable) < MAX_SCHEMAS_PER_PLACE:
            schema = waiting.pop(0)
            if not isinstance(schema, dict) or id(schema) in applicable:
                continue
            applicable[id(schema)] = schema
            for keyword in ("allOf", "anyOf", "oneOf"):
                if isinstance(schema.get(keyword), list):
                    waiting.extend(schema[keyword])
            waiting.extend(schema[keyword] for keyword in ("if", "then", "else") if keyword in schema)
            if isinstance(reference := schema.get("$ref"), str):
                waiting.append(resolve_reference(self.root, reference))
        return tuple(applicable.values())


_MAX_DISTINCT_ITEMS = 64  # array items beyond this number share their subschemas


def _children(schemas: Schemas, part: str | int) -> Iterator[Any]:
    for schema in schemas:
        if isinstance(part, str):
            properties = schema.get("properties")
            if isinstance(properties, dict) and part in properties:
                yield properties[part]
            else:
                yield schema.get("additionalProperties")
        else:
            yield _item_schema(schema, part)


def _item_schema(schema: dict[str, Any], index: int) -> Any:
    """Return the schema of the item at an index."""
    prefix, rest = schema.get("prefixItems"), "items"
    if isinstance(schema.get("items"), list):  # before draft 2020-12
        prefix, rest = schema["items"], "additionalItems"
    if isinstance(prefix, list) and 0 <= index < len(prefix):
        return prefix[index]
    return schema.get(rest)
