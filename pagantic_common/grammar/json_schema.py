"""Finds the draft of a JSON Schema, and rewrites the schema for the decoding engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import StrEnum
from math import gcd
from typing import Any

MAX_SHOWN_CHARS = 200
MAX_EXACT_INTEGER = 2**53  # Doubles represent all integers up to this value exactly.
MAX_MULTIPLE_STATES = 10_000  # The engine builds this many states of a multipleOf in 20 ms, and a million in seconds.
MAX_COMBINED_STATES = 100_000  # The numbers of states multiply if several multiples apply to the same number.
_MOST_DIGITS = 6  # More last digits would exceed MAX_MULTIPLE_STATES.

Schema = dict[str, Any] | bool


class Dialect(StrEnum):
    """The drafts of JSON Schema, identified by their `$schema`, oldest first."""

    DRAFT_4 = "http://json-schema.org/draft-04/schema"
    DRAFT_6 = "http://json-schema.org/draft-06/schema"
    DRAFT_7 = "http://json-schema.org/draft-07/schema"
    DRAFT_2019_09 = "https://json-schema.org/draft/2019-09/schema"
    DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

    @property
    def ignores_beside_ref(self) -> bool:
        """Whether keywords next to a `$ref` are ignored."""
        return self in _BEFORE_2019_09

    @property
    def engine_name(self) -> str:
        """The `$schema` that the engine uses for the draft."""
        if self in _BEFORE_2019_09:
            return f"{self}#"
        return str(self)


_BEFORE_2019_09 = frozenset({Dialect.DRAFT_4, Dialect.DRAFT_6, Dialect.DRAFT_7})
_DIALECTS = {dialect.split("://")[1]: dialect for dialect in Dialect}
_KNOWN = "drafts 4, 6, 7, 2019-09 and 2020-12 are known by their addresses on json-schema.org"


def find_dialect(name: object) -> Dialect | None:
    """Return the draft that a `$schema` names, or None if the draft is unknown.

    The name may have a trailing `#`, and may use http or https.
    """
    scheme, _, address = str(name).strip().removesuffix("#").partition("://")
    if scheme not in ("http", "https"):
        return None
    return _DIALECTS.get(address)


def read_dialect(schema: Schema) -> tuple[Dialect, str]:
    """Return the schema's draft and a warning, which is empty unless `$schema` names an unknown draft."""
    if not isinstance(schema, dict) or "$schema" not in schema:
        return Dialect.DRAFT_2020_12, ""
    name = schema["$schema"]
    if dialect := find_dialect(name):
        return dialect, ""
    shown = shorten(str(name))
    return Dialect.DRAFT_2020_12, f"$schema {shown!r} is not known: the schema was read as draft 2020-12; {_KNOWN}"


SCHEMAS_BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
NO_SCHEMAS = frozenset({"enum", "const", "default", "examples"})
_VALUES = frozenset({"const", "enum"})
_WITH_NUMBERS = _VALUES | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_KEPT_BESIDE_REF = frozenset({"$ref", "$schema", "$defs", "definitions"})
_NEW_IN_6 = frozenset({"const", "contains", "propertyNames"})
_NEW_IN_7 = frozenset({"if", "then", "else"})
_NEW_IN_2019_09 = frozenset(
    {"dependentRequired", "dependentSchemas", "maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties"}
)
_NEW_IN_2020_12 = frozenset({"prefixItems"})
# Maps each draft to the keywords of later drafts, which the draft ignores.
_LATER: dict[Dialect, frozenset[str]] = {
    Dialect.DRAFT_4: _NEW_IN_6 | _NEW_IN_7 | _NEW_IN_2019_09 | _NEW_IN_2020_12,
    Dialect.DRAFT_6: _NEW_IN_7 | _NEW_IN_2019_09 | _NEW_IN_2020_12,
    Dialect.DRAFT_7: _NEW_IN_2019_09 | _NEW_IN_2020_12,
    Dialect.DRAFT_2019_09: _NEW_IN_2020_12,
    Dialect.DRAFT_2020_12: frozenset(),
}


def schema_for_engine(schema: Schema, *, keeps_numbers: bool = True) -> Schema:
    """Return the schema without the keywords that have no meaning in its draft.

    The engine reads every keyword of every draft, and rejects an unknown `$schema`. Paths in the schema do not change,
    so references remain valid. `keeps_numbers` keeps keywords with numbers that the engine cannot enforce, which are
    otherwise dropped.
    """
    dialect, _ = read_dialect(schema)
    is_left_out = None if keeps_numbers else unenforceable_in(schema)
    rewritten: Schema = _Rewriting(dialect, is_left_out).rewrite(schema)
    return rewritten


def at_path(schema: Any, path: str) -> Any:
    """Rewrite a schema's local references to stay valid when the schema is embedded at a path: `/properties/a`."""
    if isinstance(schema, list):
        return [at_path(item, path) for item in schema]
    if not isinstance(schema, dict) or "$id" in schema:  # References use the schema's id instead.
        return schema
    return {key: _member_at_path(key, item, path) for key, item in schema.items()}


def _member_at_path(key: str, item: Any, path: str) -> Any:
    if key == "$ref" and isinstance(item, str):
        if item == "#" or item.startswith("#/"):
            return f"#{path}{item[1:]}"
        return item
    if key in SCHEMAS_BY_NAME and isinstance(item, dict):
        return {name: at_path(schema, path) for name, schema in item.items()}
    if key in NO_SCHEMAS:
        return item
    return at_path(item, path)


def unenforceable_in(schema: Schema) -> Callable[[str, Any], bool]:
    """Return a predicate for the keywords of this schema with numbers that the engine cannot enforce.

    The engine would round such a number, or take seconds to build its automaton.
    """
    states = {_multiple_states_of(key, value) for key, value in _keywords(schema)}
    is_together_too_many = math.prod(states) > MAX_COMBINED_STATES

    def is_unenforceable(key: str, value: Any) -> bool:
        if key in _WITH_NUMBERS and _find_large_integer(value) is not None:
            return True
        own = _multiple_states_of(key, value)
        return own > MAX_MULTIPLE_STATES or (own > 1 and is_together_too_many)

    return is_unenforceable


def find_rounded_value(schema: Any) -> int | None:
    """Return an integer in a `const` or `enum` that the engine would round, or None.

    With a rounded integer, no output could be valid.
    """
    for key, value in _keywords(schema):
        if key in _VALUES and (rounded := _find_large_integer(value)) is not None:
            return rounded
    return None


def find_costly_multiple(schema: Any) -> float | Decimal | None:
    """Return a `multipleOf` whose automaton is too large to build, or None."""
    is_unenforceable = unenforceable_in(schema)
    multiples = (value for key, value in _keywords(schema) if key == "multipleOf" and is_unenforceable(key, value))
    return next((value for value in multiples if _find_large_integer(value) is None), None)


def multiple_states(divisor: float | Decimal) -> int:
    """Return an upper bound on the states of an automaton that recognizes the decimal multiples of a positive number.

    The bound is from B. Alexeev, "Minimal DFA for testing divisibility" (2004). The last N digits decide divisibility
    by the divisor's factors 2 and 5, and the remainder modulo its other factors decides the rest. Factors of 10 are
    free.
    """
    digits = Decimal(str(divisor)).normalize().as_tuple().digits
    number = int("".join(map(str, digits)))
    return int(min((10**last - 1) // 9 + number // gcd(number, 10**last) for last in range(_MOST_DIGITS + 1)))


def _multiple_states_of(key: str, value: Any) -> int:
    """Return the number of states that a keyword adds.

    The result is 1 if the keyword is not multipleOf or its number would be rounded.
    """
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if key != "multipleOf" or not is_number or value <= 0 or _find_large_integer(value) is not None:
        return 1
    return max(1, multiple_states(value))


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, dict):
            continue
        for key, item in value.items():
            yield key, item
            if key in SCHEMAS_BY_NAME and isinstance(item, dict):
                waiting += item.values()
            elif key not in NO_SCHEMAS:
                waiting.append(item)


def _find_large_integer(value: Any) -> int | None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, int) and abs(item) > MAX_EXACT_INTEGER:
            return item
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
    return None


class _Rewriting:
    def __init__(self, dialect: Dialect, is_number_left_out: Callable[[str, Any], bool] | None) -> None:
        self.dialect = dialect
        self.later = _LATER[dialect]
        self.is_number_left_out = is_number_left_out

    def rewrite(self, value: Any, *, is_schema: bool = True) -> Any:
        """Rewrite a schema, or a value in another position if a `$ref` may refer to it as a schema."""
        if isinstance(value, list):
            return [self.rewrite(item, is_schema=is_schema) for item in value]
        if not isinstance(value, dict):
            return value
        is_alone = self.dialect.ignores_beside_ref and isinstance(value.get("$ref"), str)
        return {
            key: self._rewrite_member(key, item)
            for key, item in value.items()
            if not (is_alone and key not in _KEPT_BESIDE_REF) and not self._is_left_out(key, item, is_schema=is_schema)
        }

    def _is_left_out(self, key: str, item: Any, *, is_schema: bool) -> bool:
        if key == "$schema" and isinstance(item, str):
            return find_dialect(item) is None
        if not is_schema:
            return False
        return key in self.later or (self.is_number_left_out is not None and self.is_number_left_out(key, item))

    def _rewrite_member(self, key: str, item: Any) -> Any:
        if key in NO_SCHEMAS:
            return item
        if key == "$schema" and (dialect := find_dialect(item)):
            return dialect.engine_name
        if key in SCHEMAS_BY_NAME and isinstance(item, dict):
            return {name: self.rewrite(schema) for name, schema in item.items()}
        return self.rewrite(item, is_schema=key in _HOLDS_SCHEMAS)


_HOLDS_SCHEMAS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)


def shorten(text: str) -> str:
    """Return the text, truncated to 200 characters."""
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return text[:MAX_SHOWN_CHARS] + "…"
