"""Rules that are CEL expressions over `output`, the text, and `value`, the parsed JSON with numbers as doubles.

The library's `size` counts the bytes of a text and cannot be redefined. Calls of it are renamed to a function of this
module, which counts Unicode characters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cel

from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.grammar.json_schema import Schema
from services.constraint.core.paths import resolve_reference
from services.constraint.core.rules.check import Check, RuleError, first_line

MAX_EXPRESSION_CHARS = 4096
MAX_EXPRESSION_DEPTH = 100
MAX_STEPS = 100_000
_MAX_REFERENCES = 16
_MAX_NAMES_SHOWN = 10
_MAX_REASON_CHARS = 200

_MACRO = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(?P<variable>\w*)")
_STRING_OR_SIZE = re.compile(
    r"""[rR]?(?:\"{3}.*?\"{3}|'{3}.*?'{3})|(?<=[rR])(?:"[^"]*"|'[^']*')|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
    r"""|\bsize(?=\s*\()""",
    re.DOTALL,
)
_FIELDS_OF_VALUE = re.compile(r"(?<![\w.])value(?P<names>(?:\s*\.\s*[A-Za-z_]\w*+)++)(?P<is_call>\s*\()?")
_SYNTAX_ERROR = re.compile(
    r"<input>:(?P<line>\d+):(?P<column>\d+): Syntax error: (?P<what>.*?)(?: expecting .*)?$", re.MULTILINE
)
_UNEXPECTED = re.compile(r"(?:mismatched|extraneous) input '(?P<token>.*)'")
_UNDEFINED = re.compile(r"Undefined variable or function: ('[^']*')")


def compile_expression(expression: str, schema: Schema | None = None) -> Check:
    """Compile; raises RuleError for text that is not CEL, and for reading a field that the schema forbids."""
    program = _parse(expression)
    names = program.variables()
    loops = [match["variable"] for match in _MACRO.finditer(expression)]
    if unknown := sorted({*names} - {"output", "value", *loops}):
        raise RuleError(f"the expression reads {unknown[0]!r}: there is only 'output' (text) and 'value' (parsed JSON)")
    if schema is not None:
        _check_fields(expression, schema)
    return _Expression(expression, program, reads_value="value" in names, loops=len(loops)).check


class _EvaluationError(Exception):
    """The expression has no result for this output."""


@dataclass(frozen=True, slots=True)
class _Expression:
    """A compiled expression; `loops` is the number of its macros, such as `all`."""

    text: str
    program: Any
    reads_value: bool
    loops: int

    def check(self, output: str) -> str:
        """Return the reason why the rule fails; empty when it holds."""
        try:
            result = self._evaluate(output)
        except _EvaluationError as error:
            return f"cannot be evaluated: {error}"
        if not isinstance(result, bool):
            return f"gives a {type(result).__name__}, not true or false"
        if not result:
            return f"does not hold: {self.text[:200]}"
        return ""

    def _evaluate(self, output: str) -> Any:
        variables: dict[str, Any] = {"output": output}
        if self.reads_value:
            variables["value"] = _value_of(output)
            self._bound_steps(variables["value"])
        size = _Size()
        try:
            result = self.program.execute(cel.Context(variables=variables, functions={_SIZE: size}))
        except Exception as error:  # noqa: BLE001 - an evaluation error fails the rule
            raise _EvaluationError(_reason_of(error)) from None
        if size.objection:
            raise _EvaluationError(size.objection)
        return result

    def _bound_steps(self, value: Any) -> None:
        members = _count(value) + self.text.count(",")
        if self.loops > 1 and members**self.loops > MAX_STEPS:
            raise _EvaluationError(f"{self.loops} loops over this value may take more than {MAX_STEPS} steps")


def _parse(expression: str) -> Any:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise RuleError(f"the expression has {len(expression)} characters, at most {MAX_EXPRESSION_CHARS} are taken")
    if max(map(expression.count, "([{!-?")) > MAX_EXPRESSION_DEPTH:
        raise RuleError(f"the expression has more than {MAX_EXPRESSION_DEPTH} brackets or operators of a kind")
    try:
        return cel.compile(_STRING_OR_SIZE.sub(_rename_size, expression))
    except Exception:  # noqa: BLE001 - the library raises errors of many types
        raise RuleError(f"the expression does not compile: {_syntax_error_of(expression)}") from None


def _syntax_error_of(expression: str) -> str:
    """Describe a syntax error with its place in the caller's expression."""
    try:
        cel.compile(expression)
    except Exception as error:  # noqa: BLE001 - as above
        message = str(error)
    else:
        return "it is not CEL"
    match = _SYNTAX_ERROR.search(message)
    if match is None:
        return first_line(message)
    what = match["what"]
    if unexpected := _UNEXPECTED.match(what):
        what = f"unexpected {unexpected['token']!r}"
    what = what.replace("unexpected '<EOF>'", "the expression ends too early").replace("'<EOF>'", "the end")
    described = f"column {match['column']}: {what[:_MAX_REASON_CHARS]}"
    if match["line"] != "1":
        described = f"line {match['line']} {described}"
    return described


def _reason_of(error: Exception) -> str:
    """Describe in plain words why an expression has no result."""
    message = first_line(error)
    if isinstance(error, KeyError):
        return f"there is no field {message}"
    if undefined := _UNDEFINED.match(message):
        return f"there is no function {undefined[1]} for these values"
    first_sentence = message.split(". ", 1)[0].removesuffix(".")
    return first_sentence[:1].lower() + first_sentence[1:]


def _check_fields(expression: str, schema: Schema) -> None:
    """Refuse a field of `value` that no valid output has: no output could make the rule hold."""
    for match in _FIELDS_OF_VALUE.finditer(_STRING_OR_SIZE.sub('""', expression)):
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
    """Return the `value` of a rule; raises _EvaluationError when there is none."""
    try:
        return as_doubles(parse_json(output))
    except JsonTextError as error:
        raise _EvaluationError(f"the output is not JSON, so there is no value: {error}") from None


_SIZE = "unicode_size"
_KINDS = {bool: "a truth value", int: "a number", float: "a number", type(None): "null"}


class _Size:
    """Counts characters and members. It keeps its error, because the library writes raised errors to stderr."""

    def __init__(self) -> None:
        self.objection = ""

    def __call__(self, value: Any) -> int:
        if isinstance(value, str | bytes | list | dict):
            return len(value)
        self.objection = f"size() takes a text, a list or a map, not {_KINDS.get(type(value), 'such a value')}"
        return 0


def _rename_size(match: re.Match[str]) -> str:
    if match.group() == "size":
        return _SIZE
    return match.group()


def as_doubles(value: Any) -> Any:
    """Return the JSON value with every number as a double."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [as_doubles(item) for item in value]
    if isinstance(value, dict):
        return {key: as_doubles(item) for key, item in value.items()}
    try:
        return float(value)
    except OverflowError:
        if value > 0:
            return float("inf")
        return float("-inf")


def _count(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(_count(item) for item in value)
    if isinstance(value, dict):
        return 1 + sum(_count(item) for item in value.values())
    return 1
