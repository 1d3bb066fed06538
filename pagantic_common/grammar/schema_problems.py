"""Describes the reason why a document does not satisfy its JSON Schema, independent of the schema's purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jsonschema_rs

from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.grammar.json_schema import shorten

_LIMIT_TEXTS = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be greater than {}",
    "exclusiveMaximum": "must be less than {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "must have at least {} fields",
    "maxProperties": "must have at most {} fields",
}
_FIXED_TEXTS = {
    "additionalItems": "has items beyond those that the schema describes",
    "anyOf": "matches none of the alternatives",
    "contains": "has no item of the kind that is required",
    "falseSchema": "is not allowed",
    "not": "must not match what the schema excludes",
    "oneOf": "must match exactly one of the alternatives",
    "uniqueItems": "must have no equal items",
}
_DETAIL_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "type": lambda details: f"expected type {' or '.join(details['types'])}",
    "enum": lambda details: f"must be one of [{shorten(' '.join(_show(option) for option in details['options']))}]",
    "const": lambda details: f"must be {_show(details['expected_value'])}",
    "format": lambda details: f"must be a valid {details['format']}",
    "pattern": lambda details: f"must match the pattern {details['pattern']}",
    "multipleOf": lambda details: f"must be a multiple of {details['multiple_of']}",
}


def missing_field(error: jsonschema_rs.ValidationError) -> str | None:
    """Return the missing required field, or None for any other problem."""
    if error.kind.name != "required":
        return None
    return str(error.kind.as_dict()["property"])


def unexpected_fields(error: jsonschema_rs.ValidationError, document: Any) -> Sequence[str]:
    """Return the fields that the schema forbids, or an empty sequence for any other problem."""
    if error.kind.name in ("additionalProperties", "unevaluatedProperties"):
        names: list[str] = error.kind.as_dict()["unexpected"]
        return names
    # If an object does not allow fields, the library reports a single false schema at the object.
    if error.kind.name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:
        return list(_value_at(document, error.instance_path))
    return ()


def describe_problem(error: jsonschema_rs.ValidationError) -> str:
    """Return a phrase to put after the path of the value, such as "must be at least 3"."""
    kind, details = error.kind.name, error.kind.as_dict()
    if kind in _LIMIT_TEXTS:
        return _LIMIT_TEXTS[kind].format(details["limit"])
    if kind in _DETAIL_TEXTS:
        return shorten(_DETAIL_TEXTS[kind](details))
    return _FIXED_TEXTS.get(kind) or f"{kind}: {shorten(error.message)}"


def _value_at(document: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        document = document[part]
    return document


def _show(value: Any) -> str:
    if isinstance(value, str):
        return value
    return dump_json(value)
