"""Builds the validator of a schema for its draft. Patterns match in linear time, and remote references are refused."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs

from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.grammar.json_schema import Dialect, Schema, read_dialect, shorten

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BACKTRACKING = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k")

Validator = (
    jsonschema_rs.Draft202012Validator
    | jsonschema_rs.Draft201909Validator
    | jsonschema_rs.Draft7Validator
    | jsonschema_rs.Draft6Validator
    | jsonschema_rs.Draft4Validator
)
_VALIDATORS: dict[Dialect, type[Validator]] = {
    Dialect.DRAFT_4: jsonschema_rs.Draft4Validator,
    Dialect.DRAFT_6: jsonschema_rs.Draft6Validator,
    Dialect.DRAFT_7: jsonschema_rs.Draft7Validator,
    Dialect.DRAFT_2019_09: jsonschema_rs.Draft201909Validator,
    Dialect.DRAFT_2020_12: jsonschema_rs.Draft202012Validator,
}


class SchemaError(ValueError):
    """The schema violates the rules of its draft, or has a remote `$ref`. The message completes "the schema …".

    `pattern` is the invalid pattern, if a pattern is the reason.
    """

    def __init__(self, message: str, pattern: str | None = None) -> None:
        super().__init__(message)
        self.pattern = pattern


def build_validator(schema: Schema, *, ignore_formats: bool = False, mask: str | None = None) -> Validator:
    """Return a validator for the schema's draft. Raises SchemaError if the schema is not valid.

    `mask` replaces values in the validator's messages.
    """
    make = _VALIDATORS[read_dialect(schema)[0]]
    refused: list[str] = []

    def refuse(uri: str, /) -> Any:
        refused.append(uri)
        raise ValueError(uri)

    try:
        options = jsonschema_rs.RegexOptions()
        return make(
            _without_unknown_dialect(schema),
            validate_formats=not ignore_formats,
            pattern_options=options,
            retriever=refuse,
            mask=mask,
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        if refused and _ADDRESS.match(refused[0]):
            raise SchemaError(f"has a remote $ref, which is refused: {refused[0]!r}") from None
        if isinstance(error, jsonschema_rs.ValidationError):
            raise _error_of(error) from None
        raise SchemaError(f"is not valid: {shorten(str(error))}") from None


def check_schema(schema: Schema, max_chars: int) -> None:
    """Raise SchemaError if a schema is not valid, or is longer than `max_chars` as JSON."""
    if len(dump_json(schema)) > max_chars:
        raise SchemaError(f"has more than {max_chars} characters")
    build_validator(schema)


def _without_unknown_dialect(schema: Schema) -> Schema:
    if isinstance(schema, bool) or not read_dialect(schema)[1]:
        return schema
    return {key: value for key, value in schema.items() if key != "$schema"}


def _error_of(error: jsonschema_rs.ValidationError) -> SchemaError:
    where = "".join(f"/{part}" for part in error.instance_path)
    at = ""
    if where:
        at = f" at {where!r}"
    if error.kind.name != "format" or not isinstance(error.instance, str):
        return SchemaError(f"is not valid{at}: {shorten(error.message)}")
    pattern = error.instance
    if _needs_backtracking(pattern):
        return SchemaError(
            f"has a pattern{at} with look-around or a back-reference, which the engine does not have because patterns "
            f"match in linear time: {shorten(pattern)!r}; write it without them"
        )
    return SchemaError(f"is not valid{at}: {shorten(error.message)}", pattern)


def _needs_backtracking(pattern: str) -> bool:
    """Return whether a pattern is a valid regular expression that needs backtracking."""
    if not _BACKTRACKING.search(pattern):
        return False
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=jsonschema_rs.FancyRegexOptions())
    except ValueError:
        return False
    return True
