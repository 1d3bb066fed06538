"""Compiles the rules of a request and checks outputs against them."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.validation import Violation
from pagantic_common.grammar.json_schema import Schema
from services.constraint.core.model import Rule
from services.constraint.core.rules.builtin_rules import compile_builtin
from services.constraint.core.rules.check import Check, RuleError
from services.constraint.core.rules.expressions import compile_expression

MAX_RULES = 100


@dataclass(frozen=True, slots=True)
class CompiledRules:
    """Compiled rules in their declared order."""

    checks: tuple[tuple[str, Check], ...]

    def check(self, output: str) -> list[Violation]:
        """Run every rule. Returns the violations in the order of the rules."""
        violations = []
        for name, check in self.checks:
            reason = check(output)
            if reason:
                violations.append(Violation(ErrorCode.VALIDATION_RULE_FAILED, f"rule {name!r}: {reason}"))
        return violations


def compile_rules(rules: tuple[Rule, ...], schema: Schema | None = None) -> CompiledRules:
    """Compile rules. Raises InvalidRequest if a rule is invalid or reads a field that the schema forbids."""
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
        if rule.kind is not None:
            return compile_builtin(rule.kind, rule.parameters_json)
    except RuleError as error:
        raise InvalidRequest(f"rule {rule.name!r}: {error}") from None
    raise InvalidRequest(f"rule {rule.name!r}: no condition is given, neither expression nor builtin")
