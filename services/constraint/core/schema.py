"""JSON Schema: is a text a schema, and what of a document does not satisfy it."""

from __future__ import annotations

import json
import re
from collections import Counter
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
from pagantic_common.grammar.json_schema import Schema, read_dialect, shorten
from pagantic_common.grammar.schema_validator import SchemaError, Validator, build_validator
from services.constraint.core.model import Limits
from services.constraint.core.paths import format_path, printable

MAX_VIOLATIONS = 1000
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
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
        schema = parse_json(schema_json, is_rewritable=True)
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
    """Return a schema and its validator; raises what parse_schema and validator_of raise."""
    schema = parse_schema(schema_json, limits)
    return schema, validator_of(schema, ignore_formats=ignore_formats)


def validator_of(schema: Schema, *, ignore_formats: bool = False) -> Validator:
    """Make a validator; raises InvalidRequest when the schema is not one of its draft or has a remote $ref."""
    try:
        return build_validator(schema, ignore_formats=ignore_formats)
    except SchemaError as error:
        if error.pattern is not None and _is_too_large(error.pattern):
            raise InvalidRequest(
                f"a pattern of the schema is too large when it is compiled: {shorten(error.pattern)!r}",
                code=ErrorCode.CONSTRAINT_TOO_COMPLEX,
            ) from None
        raise InvalidRequest(f"the schema {error}") from None


def warnings_of(schema: Schema) -> tuple[str, ...]:
    """Return what whoever gave the schema should know although it is one."""
    _, warning = read_dialect(schema)
    return (warning,) if warning else ()


def _is_too_large(pattern: str) -> bool:
    """Tell patterns that are none from those beyond the validator's limit of size, of which it says the same."""
    try:
        check_engine_text(engine_text_of_regex(pattern))
    except GrammarTooComplexError:
        return True
    except GrammarError:
        return False
    return True


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
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise JsonTextError(f'an object has the key "{printable(twice)}" more than once')
    return found


def find_violations(document_json: str, validator: Validator) -> list[Violation]:
    """Return every violation, in document order, at most MAX_VIOLATIONS; raises JsonTextError when it is not JSON."""
    document = parse_exactly(document_json)
    try:
        errors = list(islice(validator.iter_errors(document), MAX_VIOLATIONS))
    except UnicodeEncodeError:
        reason = "the document cannot be checked: an escape gives half of a surrogate pair"
        return [Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, reason)]
    except ValueError as error:
        reason = f"the document cannot be checked: {shorten(str(error))}"
        return [Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, reason)]
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


def _message_of(kind: str, details: dict[str, Any], message: str) -> str:
    if kind in _LIMIT_TEXTS:
        return _LIMIT_TEXTS[kind].format(details["limit"])
    if kind in _DETAIL_TEXTS:
        return shorten(_DETAIL_TEXTS[kind](details))
    return _FIXED_TEXTS.get(kind) or f"{kind}: {shorten(message)}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else dump_json(value)
