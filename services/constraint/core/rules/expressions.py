"""Rules that are CEL expressions over `output` (the text) and `value` (the parsed JSON with numbers as doubles)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.grammar.expressions import STRING_OR_SIZE, Expression, ExpressionError, as_doubles
from pagantic_common.grammar.json_schema import Schema
from services.constraint.core.paths import resolve_reference
from services.constraint.core.rules.check import Check, RuleError

_MAX_REFERENCES = 16
_MAX_NAMES_SHOWN = 10

_FIELDS_OF_VALUE = re.compile(r"(?<![\w.])value(?P<names>(?:\s*\.\s*[A-Za-z_]\w*+)++)(?P<is_call>\s*\()?")


def compile_expression(expression: str, schema: Schema | None = None) -> Check:
    """Compile an expression. Raises RuleError if the text is not valid CEL or reads a field that the schema forbids."""
    try:
        compiled = Expression(expression)
    except ExpressionError as error:
        raise RuleError(str(error)) from None
    if unknown := sorted(compiled.names - {"output", "value"}):
        raise RuleError(f"the expression reads {unknown[0]!r}: there is only 'output' (text) and 'value' (parsed JSON)")
    if schema is not None:
        _check_fields(expression, schema)
    return _ExpressionRule(compiled).check


@dataclass(frozen=True, slots=True)
class _ExpressionRule:
    expression: Expression

    def check(self, output: str) -> str:
        """Return the reason why the rule fails, or an empty string if the rule holds."""
        try:
            result = self.expression.evaluate(self._variables_of(output))
        except ExpressionError as error:
            return f"cannot be evaluated: {error}"
        if not isinstance(result, bool):
            return f"gives a {type(result).__name__}, not true or false"
        if not result:
            return f"does not hold: {self.expression.text[:200]}"
        return ""

    def _variables_of(self, output: str) -> dict[str, Any]:
        variables: dict[str, Any] = {"output": output}
        if "value" in self.expression.names:
            variables["value"] = _value_of(output)
        return variables


def _check_fields(expression: str, schema: Schema) -> None:
    """Reject fields of `value` that the schema forbids, because no valid output could satisfy the rule."""
    for match in _FIELDS_OF_VALUE.finditer(STRING_OR_SIZE.sub('""', expression)):
        names = [name.strip() for name in match["names"].split(".")[1:]]
        if match["is_call"]:
            names.pop()
        _check_field(names, schema)


def _check_field(names: list[str], schema: Schema) -> None:
    place: Any = schema
    for name in names:
        place = _follow_references(place, schema)
        if not isinstance(place, dict):
            return
        declared = place.get("properties", {})
        if name in declared:
            place = declared[name]
            continue
        if _is_closed(place):
            raise RuleError(f"the schema allows no field {name!r} there{_suggestion(name, declared)}")
        return


def _follow_references(place: Any, schema: Schema) -> Any:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(place, dict) or not isinstance(place.get("$ref"), str):
            break
        place = resolve_reference(schema, place["$ref"])
    return place


def _is_closed(place: dict[str, Any]) -> bool:
    return place.get("additionalProperties") is False and not place.get("patternProperties")


def _suggestion(name: str, declared: Iterable[str]) -> str:
    names = sorted(declared)
    if close := difflib.get_close_matches(name, names, n=1):
        return f": did you mean {close[0]!r}?"
    if not names:
        return ""
    return f": it declares {', '.join(map(repr, names[:_MAX_NAMES_SHOWN]))}"


def _value_of(output: str) -> Any:
    """Return the `value` of a rule. Raises ExpressionError if the output is not JSON."""
    try:
        return as_doubles(parse_json(output))
    except JsonTextError as error:
        raise ExpressionError(f"the output is not JSON, so there is no value: {error}") from None
