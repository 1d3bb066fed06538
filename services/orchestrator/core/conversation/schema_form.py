"""Writes a JSON Schema as a form: an object type with a comment for each field.

Small models get far more fields right with a form than with the schema itself. A schema that a form cannot express is
shown unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 8
MAX_FIELDS = 256
_INDENT = "  "
_SHOWN = frozenset(
    {"type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "$ref", "description", "title"}
)
_BOUNDS = (
    "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
_SILENT = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "default", "examples", "additionalProperties"}
)
_KNOWN = _SHOWN | _SILENT | frozenset(_BOUNDS)
_TYPES = frozenset({"string", "number", "integer", "boolean", "null"})


class _NoFormError(Exception):
    """Raised if a form cannot express the schema."""


def form_of(schema: Any) -> str | None:
    """Return the form of an object or array schema, or None if a form cannot express the whole schema."""
    if not isinstance(schema, dict) or not schema.keys() & {"properties", "items"}:
        return None
    try:
        form = _Writer(schema).type_of(schema, 0, 0)
    except (_NoFormError, AttributeError, TypeError):  # The compiler reports a malformed schema.
        return None
    comment = _comment_of(schema)
    if not comment:
        return form
    return f"// {comment}\n{form}"


class _Writer:
    """Writes the form of one schema. Follows references, up to a total of MAX_FIELDS fields."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._fields_left = MAX_FIELDS

    def type_of(self, schema: Any, indent: int, depth: int) -> str:
        if not isinstance(schema, dict) or depth > MAX_DEPTH or not schema.keys() <= _KNOWN:
            raise _NoFormError
        if "$ref" in schema:
            return self.type_of(_target_of(schema["$ref"], self._root), indent, depth + 1)
        if "enum" in schema or "const" in schema:
            return " | ".join(_literal(value) for value in schema.get("enum", [schema.get("const")]))
        alternatives = _alternatives_of(schema)
        if alternatives is not None:
            return " | ".join(self.type_of(alternative, indent, depth + 1) for alternative in alternatives)
        return self._plain_type_of(schema, indent, depth)

    def _plain_type_of(self, schema: Mapping[str, Any], indent: int, depth: int) -> str:
        kind = schema.get("type")
        if kind == "object" or (not kind and "properties" in schema):
            return self._object_of(schema, indent, depth)
        if kind == "array" and isinstance(schema.get("items"), dict):
            item = self.type_of(schema["items"], indent, depth + 1)
            if " | " in item:
                item = f"({item})"
            return f"{item}[]"
        if kind in _TYPES:
            return str(kind)
        raise _NoFormError

    def _object_of(self, schema: Mapping[str, Any], indent: int, depth: int) -> str:
        required = schema.get("required", [])
        inner = _INDENT * (indent + 1)
        lines = []
        for name, value in schema.get("properties", {}).items():
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _NoFormError
            key = _literal(name)
            if name not in required:
                key = f"{key}?"
            line = f"{inner}{key}: {self.type_of(value, indent + 1, depth + 1)},"
            if comment := _comment_of(value):
                line = f"{line} // {comment}"
            lines.append(line)
        others = schema.get("additionalProperties", True)
        if isinstance(others, dict):
            lines.append(f"{inner}[key: string]: {self.type_of(others, indent + 1, depth + 1)},")
        if not lines:
            raise _NoFormError
        return "\n".join(["{", *lines, f"{_INDENT * indent}}}"])


def _alternatives_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the alternative schemas of a union, or None if the schema is not a union."""
    for union in ("anyOf", "oneOf"):
        if union in schema:
            alternatives: list[Any] = schema[union]
            return alternatives
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": type_name} for type_name in schema["type"]]
    return None


def _comment_of(schema: Any) -> str:
    """Return the title, the description and the bounds of a schema in one line."""
    if not isinstance(schema, dict):
        return ""
    words = [schema[name] for name in ("title", "description") if isinstance(schema.get(name), str)]
    bounds = [f"{name} {_literal(schema[name])}" for name in _BOUNDS if name in schema]
    return " ".join("; ".join([*words, *bounds]).split())


def _target_of(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the target of a reference within the document; the target may be another reference."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        raise _NoFormError
    target: Any = root
    for part in reference[2:].split("/"):
        if not isinstance(target, dict) or part not in target:
            raise _NoFormError
        target = target[part]
    return target


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
