"""JSON Schema: which draft a schema is of, and the schema as the decoding engine reads it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

MAX_SHOWN_CHARS = 200
MAX_EXACT_INTEGER = 2**53  # a double holds no larger one exactly

Schema = dict[str, Any] | bool


class Dialect(StrEnum):
    """The drafts, by the `$schema` that the engine knows them by, oldest first."""

    DRAFT_4 = "http://json-schema.org/draft-04/schema"
    DRAFT_6 = "http://json-schema.org/draft-06/schema"
    DRAFT_7 = "http://json-schema.org/draft-07/schema"
    DRAFT_2019_09 = "https://json-schema.org/draft/2019-09/schema"
    DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

    @property
    def ignores_beside_ref(self) -> bool:
        """Whether `$ref` is alone: what stands beside it means nothing."""
        return self in _BEFORE_2019_09


_BEFORE_2019_09 = frozenset({Dialect.DRAFT_4, Dialect.DRAFT_6, Dialect.DRAFT_7})
_DIALECTS = {dialect.split("://")[1]: dialect for dialect in Dialect}
_KNOWN = "drafts 4, 6, 7, 2019-09 and 2020-12 are known by their addresses on json-schema.org"


def find_dialect(name: object) -> Dialect | None:
    """Return the draft that a `$schema` names, with or without a trailing `#`, http or https; None for another."""
    scheme, _, address = str(name).strip().removesuffix("#").partition("://")
    return _DIALECTS.get(address) if scheme in ("http", "https") else None


def read_dialect(schema: Schema) -> tuple[Dialect, str]:
    """Return the schema's draft and a warning, which is empty unless `$schema` names a draft that is not known."""
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
# Keywords of later drafts, which mean nothing yet.
_LATER: dict[Dialect, frozenset[str]] = {
    Dialect.DRAFT_4: _NEW_IN_6 | _NEW_IN_7 | _NEW_IN_2019_09 | _NEW_IN_2020_12,
    Dialect.DRAFT_6: _NEW_IN_7 | _NEW_IN_2019_09 | _NEW_IN_2020_12,
    Dialect.DRAFT_7: _NEW_IN_2019_09 | _NEW_IN_2020_12,
    Dialect.DRAFT_2019_09: _NEW_IN_2020_12,
    Dialect.DRAFT_2020_12: frozenset(),
}


def schema_for_engine(schema: Schema, *, keeps_rounded: bool = True) -> Schema:
    """Return the schema as the engine must read it: without the keywords that mean nothing in the schema's draft.

    The engine reads every keyword of every draft, and refuses a `$schema` that it does not know. Places stay as they
    are, so that references hold. Keywords whose numbers it would round are kept or left out.
    """
    dialect, _ = read_dialect(schema)
    rewritten: Schema = _Rewriting(dialect, keeps_rounded=keeps_rounded).rewrite(schema)
    return rewritten


def is_rounded(key: str, value: Any) -> bool:
    """Tell whether the engine, which reads numbers as doubles, would enforce another number than the keyword says."""
    return key in _WITH_NUMBERS and _find_large_integer(value) is not None


def find_rounded_value(schema: Any) -> int | None:
    """Return an integer of a `const` or `enum` that the engine would round, so that no output were valid."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, dict):
            continue
        for key, item in value.items():
            if key in _VALUES and (found := _find_large_integer(item)) is not None:
                return found
            if key in SCHEMAS_BY_NAME and isinstance(item, dict):
                waiting += item.values()
            elif key not in NO_SCHEMAS:
                waiting.append(item)
    return None


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
    def __init__(self, dialect: Dialect, *, keeps_rounded: bool) -> None:
        self.dialect = dialect
        self.later = _LATER[dialect]
        self.keeps_rounded = keeps_rounded

    def rewrite(self, value: Any, *, is_schema: bool = True) -> Any:
        """Rewrite a schema, or a value at a place that is not known to hold one but may be referred to."""
        if isinstance(value, list):
            return [self.rewrite(item, is_schema=is_schema) for item in value]
        if not isinstance(value, dict):
            return value
        is_alone = self.dialect.ignores_beside_ref and isinstance(value.get("$ref"), str)
        rewritten: dict[str, Any] = {}
        for key, item in value.items():
            if (is_alone and key not in _KEPT_BESIDE_REF) or (is_schema and key in self.later):
                continue
            if is_schema and not self.keeps_rounded and is_rounded(key, item):
                continue
            if key == "$schema" and isinstance(item, str):
                if known := find_dialect(item):
                    rewritten[key] = f"{known}#" if known in _BEFORE_2019_09 else str(known)
            else:
                rewritten[key] = self._rewrite_member(key, item)
        return rewritten

    def _rewrite_member(self, key: str, item: Any) -> Any:
        if key in NO_SCHEMAS:
            return item
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
    """Return the text, cut where it is long."""
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
