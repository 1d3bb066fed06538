"""Rules over an output: built-ins here, CEL expressions in `expressions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import re2

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.validation import Violation
from pagantic_common.grammar.json_schema import Schema
from services.constraint.core.expressions import Check, RuleError, compile_expression, first_line
from services.constraint.core.json_repair import is_json
from services.constraint.core.model import Rule
from services.constraint.core.words import MAX_WORDS, find_words

MAX_RULES = 100
MAX_REGEX_BYTES = 1 << 20


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


def compile_rules(rules: tuple[Rule, ...], schema: Schema | None = None) -> CompiledRules:
    """Compile; raises InvalidRequest naming the rule that does not, or that reads a field which the schema forbids."""
    if len(rules) > MAX_RULES:
        raise InvalidRequest(f"too many rules: {len(rules)}, at most {MAX_RULES} are taken")
    names = [rule.name for rule in rules]
    for name in names:
        if not name:
            raise InvalidRequest("a rule has no name")
        if names.count(name) > 1:
            raise InvalidRequest(f"rule {name!r} is named more than once")
    return CompiledRules(tuple((rule.name, _compile(rule, schema)) for rule in rules))


def _compile(rule: Rule, schema: Schema | None) -> Check:
    try:
        if rule.expression is not None:
            return compile_expression(rule.expression, schema)
        return _compile_builtin(rule.kind, rule.parameters_json)
    except RuleError as error:
        raise InvalidRequest(f"rule {rule.name!r}: {error}") from None


def _compile_builtin(kind: str, parameters_json: str) -> Check:
    try:
        make, parameter, parameter_type = _BUILTINS[kind]
    except KeyError:
        raise RuleError(f"no built-in rule is named {kind!r}; there are {', '.join(_BUILTINS)}") from None
    try:
        parameters = parse_json(parameters_json) if parameters_json else {}
    except JsonTextError as error:
        raise RuleError(f"its parameters are not JSON: {error}") from None
    if not isinstance(parameters, dict):
        raise RuleError("its parameters are not a JSON object")
    expected = {parameter} if parameter else set()
    if set(parameters) != expected:
        takes = f"takes exactly the parameter {parameter!r}" if parameter else "takes no parameters"
        raise RuleError(f"{kind} {takes}, not {sorted(parameters)}")
    value = parameters.get(parameter)
    if parameter and (not isinstance(value, parameter_type) or isinstance(value, bool)):
        raise RuleError(f"{parameter!r} must be a {_TYPE_NAMES[parameter_type]}")
    if isinstance(value, list) and not all(isinstance(word, str) and word.strip() for word in value):
        raise RuleError(f"{parameter!r} must hold words, none of them blank")
    if isinstance(value, list) and len(value) > MAX_WORDS:
        raise RuleError(f"{parameter!r} has {len(value)} words, at most {MAX_WORDS} are taken")
    if isinstance(value, int) and value < 0:
        raise RuleError(f"{parameter!r} must not be negative")
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
        raise RuleError(f"the pattern is not a regular expression of RE2: {first_line(error)}") from None
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
