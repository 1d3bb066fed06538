"""Rules that are CEL expressions over `output`, the text, and `value`, the parsed JSON with numbers as doubles.

The library's `size` counts the bytes of a text and cannot be redefined, so calls of it are renamed to one of ours that
counts Unicode characters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

import cel

from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.grammar.json_schema import Schema
from services.constraint.core.paths import resolve_reference

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

Check = Callable[[str], str]  # text -> why it fails, empty when it holds


class RuleError(ValueError):
    """The rule does not compile."""


def compile_expression(expression: str, schema: Schema | None = None) -> Check:
    """Compile; raises RuleError for what is no expression, or reads a field which the schema forbids."""
    program = _parse(expression)
    names = program.variables()
    loops = [match["variable"] for match in _MACRO.finditer(expression)]
    if unknown := sorted({*names} - {"output", "value", *loops}):
        raise RuleError(f"the expression reads {unknown[0]!r}: there is only 'output' (text) and 'value' (parsed JSON)")
    if schema is not None:
        _check_fields(expression, schema)

    def check(output: str) -> str:
        variables: dict[str, Any] = {"output": output}
        if "value" in names:
            variables["value"], objection = _value_of(output)
            if objection:
                return f"cannot be evaluated: {objection}"
            if len(loops) > 1 and (_count(variables["value"]) + expression.count(",")) ** len(loops) > MAX_STEPS:
                return f"cannot be evaluated: {len(loops)} loops over this value may take more than {MAX_STEPS} steps"
        size = _Size()
        try:
            result = program.execute(cel.Context(variables=variables, functions={_SIZE: size}))
        except Exception as error:  # noqa: BLE001 - an evaluation error fails the rule
            return f"cannot be evaluated: {_reason_of(error)}"
        if size.objection:
            return f"cannot be evaluated: {size.objection}"
        if not isinstance(result, bool):
            return f"gives a {type(result).__name__}, not true or false"
        return "" if result else f"does not hold: {expression[:200]}"

    return check


def _parse(expression: str) -> Any:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise RuleError(f"the expression has {len(expression)} characters, at most {MAX_EXPRESSION_CHARS} are taken")
    if max(map(expression.count, "([{!-?")) > MAX_EXPRESSION_DEPTH:
        raise RuleError(f"the expression has more than {MAX_EXPRESSION_DEPTH} brackets or operators of a kind")
    try:
        return cel.compile(_STRING_OR_SIZE.sub(_rename_size, expression))
    except Exception:  # noqa: BLE001 - the library raises what its parser meets
        raise RuleError(f"the expression does not compile: {_syntax_error_of(expression)}") from None


def _syntax_error_of(expression: str) -> str:
    """Say what is wrong, at its place in the expression as it was given."""
    try:
        cel.compile(expression)
    except Exception as error:  # noqa: BLE001 - as above
        message = str(error)
    else:
        return "it is not CEL"
    found = _SYNTAX_ERROR.search(message)
    if found is None:
        return first_line(message)
    what = found["what"]
    if unexpected := _UNEXPECTED.match(what):
        what = f"unexpected {unexpected['token']!r}"
    what = what.replace("unexpected '<EOF>'", "the expression ends too early").replace("'<EOF>'", "the end")
    line = "" if found["line"] == "1" else f"line {found['line']} "
    return f"{line}column {found['column']}: {what[:_MAX_REASON_CHARS]}"


def _reason_of(error: Exception) -> str:
    """Say in plain words why an expression has no result."""
    message = first_line(error)
    if isinstance(error, KeyError):
        return f"there is no field {message}"
    if undefined := _UNDEFINED.match(message):
        return f"there is no function {undefined[1]} for these values"
    first_sentence = message.split(". ", 1)[0].removesuffix(".")
    return first_sentence[:1].lower() + first_sentence[1:]


def _check_fields(expression: str, schema: Schema) -> None:
    """Refuse a field of `value` that no valid output has: nothing that a model writes could make the rule hold."""
    for found in _FIELDS_OF_VALUE.finditer(_STRING_OR_SIZE.sub('""', expression)):
        names = [name.strip() for name in found["names"].split(".")[1:]]
        place: Any = schema
        for name in names[:-1] if found["is_call"] else names:
            place = _followed(place, schema)
            declared = place.get("properties", {}) if isinstance(place, dict) else {}
            if name not in declared:
                if isinstance(place, dict) and _is_closed(place):
                    raise RuleError(f"the schema allows no field {name!r} there{_suggestion(name, declared)}")
                break
            place = declared[name]


def _followed(place: Any, schema: Schema) -> Any:
    for _ in range(_MAX_REFERENCES):
        reference = place.get("$ref") if isinstance(place, dict) else None
        if not isinstance(reference, str):
            break
        place = resolve_reference(schema, reference)
    return place


def _is_closed(place: dict[str, Any]) -> bool:
    return place.get("additionalProperties") is False and not place.get("patternProperties")


def _suggestion(name: str, declared: Iterable[str]) -> str:
    names = sorted(declared)
    if close := difflib.get_close_matches(name, names, n=1):
        return f": did you mean {close[0]!r}?"
    return f": it declares {', '.join(map(repr, names[:_MAX_NAMES_SHOWN]))}" if names else ""


def _value_of(output: str) -> tuple[Any, str]:
    """Return what a rule sees as `value`, and why there is none."""
    try:
        return as_doubles(parse_json(output)), ""
    except JsonTextError:
        return None, "the output is not JSON, so there is no value"
    except RecursionError:
        return None, "the value is nested too deeply"


_SIZE = "unicode_size"
_KINDS = {bool: "a truth value", int: "a number", float: "a number", type(None): "null"}


class _Size:
    """Counts characters and members. What it raised, the library would write to stderr."""

    def __init__(self) -> None:
        self.objection = ""

    def __call__(self, value: Any) -> int:
        if isinstance(value, str | bytes | list | dict):
            return len(value)
        self.objection = f"size() takes a text, a list or a map, not {_KINDS.get(type(value), 'such a value')}"
        return 0


def _rename_size(match: re.Match[str]) -> str:
    return _SIZE if match.group() == "size" else match.group()


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
        return float("inf") if value > 0 else float("-inf")


def _count(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(_count(item) for item in value)
    if isinstance(value, dict):
        return 1 + sum(_count(item) for item in value.values())
    return 1


def first_line(error: object) -> str:
    """Return the first line of what a library says, cut where it is long."""
    first = error.args[0] if isinstance(error, Exception) and error.args else ""
    text = first.decode(errors="replace") if isinstance(first, bytes) else str(error)
    return text.strip().split("\n", 1)[0][:_MAX_REASON_CHARS]
