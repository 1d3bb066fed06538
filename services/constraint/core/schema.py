"""JSON Schema: is a text a schema, and what of a document does not satisfy it.

Draft 2020-12 unless `$schema` names 2019-09 or draft-07.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.validation import Violation
from pagantic_common.grammar.engine_text import (
    GrammarError,
    GrammarTooComplexError,
    check_engine_text,
    engine_text_of_regex,
)
from services.constraint.core.model import Limits
from services.constraint.core.paths import format_path, printable

MAX_VIOLATIONS = 1000
_MAX_SHOWN_CHARS = 200
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

Schema = dict[str, Any] | bool
Validator = jsonschema_rs.Draft202012Validator | jsonschema_rs.Draft201909Validator | jsonschema_rs.Draft7Validator

_DIALECTS: dict[str, type[Validator]] = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
}
_OPEN_SCHEMAS = 64  # of which a process keeps the validators


def bound_source(text: str, limits: Limits, what: str) -> None:
    """Refuse a schema or grammar that is too large; raises InvalidRequest (CONSTRAINT_TOO_COMPLEX)."""
    size = len(text.encode())
    if size > limits.max_schema_bytes:
        raise InvalidRequest(
            f"the {what} is too large: {size} bytes, at most {limits.max_schema_bytes} are taken",
            code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
        )


def parse_schema(schema_json: str, limits: Limits) -> Schema:
    """Parse a schema within limits; raises InvalidRequest naming why it is none."""
    bound_source(schema_json, limits, "schema")
    depth = depth_of(schema_json)
    if depth > limits.max_schema_depth:
        raise InvalidRequest(
            f"the schema is nested too deeply: {depth} levels, at most {limits.max_schema_depth} are taken",
            code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
        )
    try:
        schema = parse_json(schema_json)
    except JsonTextError as error:
        raise InvalidRequest(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("the schema is neither an object nor a boolean")
    return schema


def depth_of(text: str) -> int:
    """Return how deep brackets nest in a text that should be JSON."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        first = match.group()[0]
        if first in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in "]}":
            depth -= 1
    return deepest


@lru_cache(maxsize=_OPEN_SCHEMAS)
def open_schema(schema_json: str, limits: Limits, ignore_formats: bool = False) -> tuple[Schema, Validator]:
    """Return a schema and its validator; raises what parse_schema and build_validator raise."""
    schema = parse_schema(schema_json, limits)
    return schema, build_validator(schema, ignore_formats=ignore_formats)


def build_validator(schema: Schema, *, ignore_formats: bool = False) -> Validator:
    """Make a validator; raises InvalidRequest when the schema is not one of its draft or has a remote $ref.

    Patterns run in linear time; one that cannot (look-around, back-references) makes the schema invalid.
    """
    make = _dialect_of(schema)
    refused: list[str] = []

    def refuse(uri: str, /) -> Any:
        refused.append(uri)
        raise ValueError(uri)

    try:
        options = jsonschema_rs.RegexOptions()
        return make(schema, validate_formats=not ignore_formats, pattern_options=options, retriever=refuse)
    except jsonschema_rs.ValidationError as error:
        if _is_pattern_too_large(error):
            raise InvalidRequest(
                f"a pattern of the schema is too large when it is compiled: {_cut(str(error.instance))!r}",
                code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
            ) from None
        reason = _cut(error.message)
        where = "".join(f"/{part}" for part in error.instance_path)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason, where = _cut(str(error)), ""
    if refused and _ADDRESS.match(refused[0]):
        raise InvalidRequest(f"the schema has a remote $ref, which is refused: {refused[0]!r}")
    raise InvalidRequest(f"the schema is not valid{f' at {where!r}' if where else ''}: {reason}")


def _is_pattern_too_large(error: jsonschema_rs.ValidationError) -> bool:
    """Tell patterns that are none from those that are beyond the library's limit of size, of which it says the same."""
    if error.kind.name != "format" or not isinstance(error.instance, str):
        return False
    try:
        check_engine_text(engine_text_of_regex(error.instance))
    except GrammarTooComplexError:
        return True
    except GrammarError:
        return False
    return True


def _dialect_of(schema: Schema) -> type[Validator]:
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return jsonschema_rs.Draft202012Validator
    try:
        return _DIALECTS[str(name).removesuffix("#")]
    except KeyError:
        raise InvalidRequest(
            f"the schema's dialect is not known: $schema is {_cut(str(name))!r}, there are {', '.join(_DIALECTS)}"
        ) from None


def parse_exactly(text: str) -> Any:
    """Parse strict JSON with fractions as Decimal, so that nothing is rounded before it is checked.

    A key that is given twice is refused: which of the values counts is up to the reader.
    """
    parse_json(text)
    try:
        return json.loads(text, parse_float=Decimal, object_pairs_hook=_object_of)
    except ArithmeticError:
        raise JsonTextError("a number's exponent is out of range") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonTextError(f'an object has the key "{printable(twice)}" more than once')
    return found


def find_violations(document_json: str, validator: Validator) -> list[Violation]:
    """Return every violation, in document order, at most MAX_VIOLATIONS; raises JsonTextError when it is not JSON."""
    document = parse_exactly(document_json)
    try:
        errors = list(islice(validator.iter_errors(document), MAX_VIOLATIONS))
    except ValueError as error:
        return [Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, f"the document cannot be checked: {_cut(str(error))}")]
    order = _DocumentOrder(document)
    errors.sort(key=lambda error: order.key_of(error.instance_path))
    return [violation for error in errors for violation in _violations_of(error, document)][:MAX_VIOLATIONS]


class _DocumentOrder:
    """Ranks paths by where they stand in the text."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.ranks: dict[int, dict[str, int]] = {}

    def key_of(self, path: list[str | int]) -> tuple[int, ...]:
        value, key = self.document, []
        for part in path:
            if isinstance(part, int) and isinstance(value, list):
                key.append(part)
                value = value[part]
            elif isinstance(part, str) and isinstance(value, dict) and part in value:
                ranks = self.ranks.get(id(value))
                if ranks is None:
                    ranks = self.ranks[id(value)] = {name: rank for rank, name in enumerate(value)}
                key.append(ranks[part])
                value = value[part]
            else:
                break
        return tuple(key)


def _violations_of(error: jsonschema_rs.ValidationError, document: Any) -> Iterator[Violation]:
    kind, details, path = error.kind.name, error.kind.as_dict(), format_path(error.instance_path)
    where = f' at "{path}"' if path else ""
    if kind == "required":
        text = f'missing required field "{printable(details["property"])}"{where}'
        yield Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, text, path)
    elif kind in ("additionalProperties", "unevaluatedProperties") or _is_closed_object(error):
        names = details.get("unexpected")
        for name in _value_at(document, error.instance_path) if names is None else names:
            yield Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, f'unexpected field "{printable(name)}"{where}', path)
    else:
        is_enum = kind == "enum"
        code = ErrorCode.CONSTRAINT_ENUM_UNRECOGNIZED if is_enum else ErrorCode.CONSTRAINT_SCHEMA_INVALID
        field = f'field "{path}": ' if path else ""
        yield Violation(code, field + _message_of(kind, details, error.message), path)


def _is_closed_object(error: jsonschema_rs.ValidationError) -> bool:
    """Whether an object may have no fields at all: the library reports that as one false schema at the object."""
    return error.kind.name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]


def _value_at(document: Any, path: list[str | int]) -> Any:
    for part in path:
        document = document[part]
    return document


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
    "anyOf": "matches none of the alternatives",
    "contains": "has no item of the kind that is required",
    "falseSchema": "is not allowed",
    "not": "must not match what the schema excludes",
    "oneOf": "must match exactly one of the alternatives",
    "uniqueItems": "must have no equal items",
}
_DETAIL_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "type": lambda details: f"expected type {' or '.join(details['types'])}",
    "enum": lambda details: f"must be one of [{_cut(' '.join(_show(option) for option in details['options']))}]",
    "const": lambda details: f"must be {_show(details['expected_value'])}",
    "format": lambda details: f"must be a valid {details['format']}",
    "pattern": lambda details: f"must match the pattern {details['pattern']}",
    "multipleOf": lambda details: f"must be a multiple of {details['multiple_of']}",
}


def _message_of(kind: str, details: dict[str, Any], message: str) -> str:
    if kind in _LIMIT_TEXTS:
        return _LIMIT_TEXTS[kind].format(details["limit"])
    if kind in _DETAIL_TEXTS:
        return _cut(_DETAIL_TEXTS[kind](details))
    return _FIXED_TEXTS.get(kind) or f"{kind}: {_cut(message)}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"
