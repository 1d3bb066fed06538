"""Parses JSON Schemas within limits, and finds the violations of a document."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.validation import Violation
from pagantic_common.grammar.engine_text import (
    GrammarError,
    GrammarTooComplexError,
    check_engine_text,
    engine_text_of_regex,
)
from pagantic_common.grammar.json_schema import Schema, read_dialect, shorten
from pagantic_common.grammar.schema_problems import describe_problem, missing_field, unexpected_fields
from pagantic_common.grammar.schema_validator import SchemaError, Validator, build_validator
from services.constraint.core.model import Limits
from services.constraint.core.paths import format_path, printable

MAX_VIOLATIONS = 1000
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_OPEN_SCHEMAS = 64  # maximum number of validators cached per process


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """The violations of a document, and the warnings about its schema."""

    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()


def check_document(document: str, schema_json: str, limits: Limits, *, ignore_formats: bool) -> SchemaReport:
    """Check a document against a schema. Raises InvalidRequest if the schema is invalid."""
    schema, validator = open_schema(schema_json, limits, ignore_formats)
    try:
        violations = find_violations(document, validator)
    except JsonTextError as error:
        violations = [Violation(ErrorCode.CONSTRAINT_JSON_INVALID, f"the document is not JSON: {error}")]
    return SchemaReport(tuple(violations), warnings_of(schema))


def parse_schema(schema_json: str, limits: Limits) -> Schema:
    """Parse a schema within limits. Raises InvalidRequest with the reason if the schema is invalid."""
    limits.check_source(schema_json, "schema")
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
    """Return the nesting depth of the brackets in a text, which need not be valid JSON."""
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
    """Return a schema and its validator. Raises the errors of parse_schema and validator_of."""
    schema = parse_schema(schema_json, limits)
    return schema, validator_of(schema, ignore_formats=ignore_formats)


def validator_of(schema: Schema, *, ignore_formats: bool = False) -> Validator:
    """Build a validator. Raises InvalidRequest if the schema is invalid under its draft or has a remote $ref."""
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
    """Return the warnings about a valid schema."""
    _, warning = read_dialect(schema)
    if not warning:
        return ()
    return (warning,)


def _is_too_large(pattern: str) -> bool:
    """Return whether a rejected pattern is too large, not invalid. The validator raises one error for both cases."""
    try:
        check_engine_text(engine_text_of_regex(pattern))
    except GrammarTooComplexError:
        return True
    except GrammarError:
        return False
    return True


def parse_exactly(text: str) -> Any:
    """Parse strict JSON with fractions as Decimal, so that no number is rounded before the check.

    A repeated key is rejected, because parsers disagree on the value that counts.
    """
    parse_json(text)
    try:
        return json.loads(text, parse_float=Decimal, object_pairs_hook=_object_of)
    except ArithmeticError:
        raise JsonTextError("a number's exponent is out of range") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise JsonTextError(f'an object has the key "{printable(twice)}" more than once')
    return members


def find_violations(document_json: str, validator: Validator) -> list[Violation]:
    """Return up to MAX_VIOLATIONS violations in document order. Raises JsonTextError if the text is not JSON."""
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
    """Ranks paths by their position in the document."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.ranks: dict[int, dict[str, int]] = {}

    def key_of(self, path: list[str | int]) -> tuple[int, ...]:
        value = self.document
        key = []
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
    path = format_path(error.instance_path)
    where = ""
    if path:
        where = f' at "{path}"'
    if (missing := missing_field(error)) is not None:
        text = f'missing required field "{printable(missing)}"{where}'
        yield Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, text, path)
    elif unexpected := unexpected_fields(error, document):
        for name in unexpected:
            yield Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, f'unexpected field "{printable(name)}"{where}', path)
    else:
        yield _wrong_value(error, path)


def _wrong_value(error: jsonschema_rs.ValidationError, path: str) -> Violation:
    code = ErrorCode.CONSTRAINT_SCHEMA_INVALID
    if error.kind.name == "enum":
        code = ErrorCode.CONSTRAINT_ENUM_UNRECOGNIZED
    message = describe_problem(error)
    if path:
        message = f'field "{path}": {message}'
    return Violation(code, message, path)
