"""Rules: CEL expressions and built-ins over an output.

The library's `size` counts the bytes of a text and cannot be redefined, so calls of it are renamed to one of ours that
counts Unicode characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cel
import re2

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.validation import Violation
from services.constraint.core.json_repair import is_json
from services.constraint.core.model import Rule
from services.constraint.core.words import MAX_WORDS, find_words

MAX_RULES = 100
MAX_EXPRESSION_CHARS = 4096
MAX_EXPRESSION_DEPTH = 100
MAX_STEPS = 100_000
MAX_REGEX_BYTES = 1 << 20

_MACRO = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(")
_STRING_OR_SIZE = re.compile(
    r"""[rR]?(?:\"{3}.*?\"{3}|'{3}.*?'{3})|(?<=[rR])(?:"[^"]*"|'[^']*')|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
    r"""|\bsize(?=\s*\()""",
    re.DOTALL,
)

Check = Callable[[str], str]  # text -> why it fails, empty when it holds


@dataclass(frozen=True, slots=True)
class CompiledRules:
    """Rules that compiled, in their order."""

    checks: tuple[tuple[str, Check], ...]

    def check(self, output: str) -> list[Violation]:
        """Run every rule; returns the failures in the rules' order."""
        violations = []
        for name, check in self.checks:
            reason = check(output)
            if reason:
                violations.append(Violation(ErrorCode.VALIDATION_RULE_FAILED, f"rule {name!r}: {reason}"))
        return violations


def compile_rules(rules: tuple[Rule, ...]) -> CompiledRules:
    """Compile; raises InvalidRequest naming the rule that does not."""
    if len(rules) > MAX_RULES:
        raise InvalidRequest(f"too many rules: {len(rules)}, at most {MAX_RULES} are taken")
    names = [rule.name for rule in rules]
    for name in names:
        if not name:
            raise InvalidRequest("a rule has no name")
        if names.count(name) > 1:
            raise InvalidRequest(f"rule {name!r} is named more than once")
    return CompiledRules(tuple((rule.name, _compile(rule)) for rule in rules))


def _compile(rule: Rule) -> Check:
    try:
        if rule.expression is not None:
            return _compile_expression(rule.expression)
        return _compile_builtin(rule.kind, rule.parameters_json)
    except _RuleError as error:
        raise InvalidRequest(f"rule {rule.name!r}: {error}") from None


class _RuleError(ValueError):
    """The rule does not compile."""


def _compile_expression(expression: str) -> Check:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise _RuleError(f"the expression has {len(expression)} characters, at most {MAX_EXPRESSION_CHARS} are taken")
    if max(map(expression.count, "([{!-?")) > MAX_EXPRESSION_DEPTH:
        raise _RuleError(f"the expression has more than {MAX_EXPRESSION_DEPTH} brackets or operators of a kind")
    try:
        program = cel.compile(_STRING_OR_SIZE.sub(_rename_size, expression))
        names = program.variables()
    except Exception as error:  # noqa: BLE001 - the library raises what its parser meets
        raise _RuleError(f"the expression does not compile: {_first_line(error)}") from None
    loops = len(_MACRO.findall(expression))

    def check(output: str) -> str:
        variables: dict[str, Any] = {"output": output}
        if "value" in names:
            variables["value"], objection = _value_of(output)
            if objection:
                return f"cannot be evaluated: {objection}"
            if loops > 1 and (_count(variables["value"]) + expression.count(",")) ** loops > MAX_STEPS:
                return f"cannot be evaluated: {loops} loops over this value may take more than {MAX_STEPS} steps"
        try:
            result = program.execute(cel.Context(variables=variables, functions={_SIZE: _size}))
        except Exception as error:  # noqa: BLE001 - an evaluation error fails the rule
            return f"cannot be evaluated: {type(error).__name__}: {_first_line(error)}"
        if not isinstance(result, bool):
            return f"gives a {type(result).__name__}, not true or false"
        return "" if result else f"does not hold: {expression[:200]}"

    return check


def _value_of(output: str) -> tuple[Any, str]:
    """Return what a rule sees as `value`, and why there is none."""
    try:
        return as_doubles(parse_json(output)), ""
    except JsonTextError:
        return None, "the output is not JSON, so there is no value"
    except RecursionError:
        return None, "the value is nested too deeply"


_SIZE = "unicode_size"


def _rename_size(match: re.Match[str]) -> str:
    return _SIZE if match.group() == "size" else match.group()


def _size(value: Any) -> int:
    return len(value)


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


def _compile_builtin(kind: str, parameters_json: str) -> Check:
    try:
        make, parameter, parameter_type = _BUILTINS[kind]
    except KeyError:
        raise _RuleError(f"no built-in rule is named {kind!r}; there are {', '.join(_BUILTINS)}") from None
    try:
        parameters = parse_json(parameters_json) if parameters_json else {}
    except JsonTextError as error:
        raise _RuleError(f"its parameters are not JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise _RuleError("its parameters are not a JSON object")
    expected = {parameter} if parameter else set()
    if set(parameters) != expected:
        takes = f"takes exactly the parameter {parameter!r}" if parameter else "takes no parameters"
        raise _RuleError(f"{kind} {takes}, not {sorted(parameters)}")
    value = parameters.get(parameter)
    if parameter and (not isinstance(value, parameter_type) or isinstance(value, bool)):
        raise _RuleError(f"{parameter!r} must be a {_TYPE_NAMES[parameter_type]}")
    if isinstance(value, list) and not all(isinstance(word, str) and word.strip() for word in value):
        raise _RuleError(f"{parameter!r} must hold words, none of them blank")
    if isinstance(value, list) and len(value) > MAX_WORDS:
        raise _RuleError(f"{parameter!r} has {len(value)} words, at most {MAX_WORDS} are taken")
    if isinstance(value, int) and value < 0:
        raise _RuleError(f"{parameter!r} must not be negative")
    return make(value)


def _not_empty(_: Any) -> Check:
    return lambda output: "" if output.strip() else "the output is empty"


def _max_length(limit: int) -> Check:
    return lambda output: "" if len(output) <= limit else f"has {len(output)} characters, at most {limit} are allowed"


def _min_length(limit: int) -> Check:
    return lambda output: "" if len(output) >= limit else f"has {len(output)} characters, at least {limit} are needed"


def _valid_json(_: Any) -> Check:
    return lambda output: "" if is_json(output) else "the output is not JSON"


def _regex(pattern: str) -> Check:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_REGEX_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise _RuleError(f"the pattern is not a regular expression of RE2: {_first_line(error)}") from None
    return lambda output: "" if compiled.search(output) else f"does not match {pattern[:200]!r}"


def _contains(text: str) -> Check:
    return lambda output: "" if text in output else f"does not contain {text[:200]!r}"


def _excludes(text: str) -> Check:
    return lambda output: "" if text not in output else f"contains {text[:200]!r}"


def _excludes_words(words: list[str]) -> Check:
    def check(output: str) -> str:
        found = find_words(words, output)
        return f"contains the word {found[0][:200]!r}" if found else ""

    return check


def _first_line(error: Exception) -> str:
    first = error.args[0] if error.args else ""
    text = first.decode(errors="replace") if isinstance(first, bytes) else str(error)
    return text.strip().split("\n", 1)[0][:200]


_TYPE_NAMES = {int: "whole number", str: "text", list: "list"}
_BUILTINS: dict[str, tuple[Callable[[Any], Check], str, type]] = {
    "not_empty": (_not_empty, "", str),
    "max_length": (_max_length, "length", int),
    "min_length": (_min_length, "length", int),
    "valid_json": (_valid_json, "", str),
    "regex": (_regex, "pattern", str),
    "contains": (_contains, "text", str),
    "excludes": (_excludes, "text", str),
    "excludes_words": (_excludes_words, "words", list),
}
