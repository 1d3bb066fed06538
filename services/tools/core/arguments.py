"""Arguments against a tool's schema, before anything runs. Patterns match in linear time; references stay local."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.grammar.schema_validator import SchemaError, build_validator

_MAX_VIOLATIONS = 10
_MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with the arguments; `argument` is empty when it concerns all of them."""

    argument: str
    problem: str


class InvalidArguments(Exception):
    """The arguments do not satisfy the schema; at most ten violations are kept."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("; ".join(violation.problem for violation in violations))
        self.violations = violations


class ArgumentChecker:
    """Checks the arguments of one tool.

    Args:
        tool_name: For messages.
        parameters_json: JSON Schema of the draft that its `$schema` names, whose type is object; else InvalidRequest.
    """

    def __init__(self, tool_name: str, parameters_json: str) -> None:
        try:
            schema = parse_json(parameters_json)
        except JsonTextError as error:
            raise InvalidRequest(f"the parameters of tool {tool_name!r} are not JSON: {error}") from None
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise InvalidRequest(f"the parameters of tool {tool_name!r} must be a schema of type 'object'")
        try:
            # The mask keeps argument values, which may be secrets, out of messages.
            self._validator = build_validator(schema, mask="the value")
        except SchemaError as error:
            raise InvalidRequest(f"the parameters of tool {tool_name!r} are a schema that {error}") from None
        self._known = tuple(schema.get("properties", {}))

    def parse(self, arguments_json: str) -> dict[str, Any]:
        """Return the arguments; raises InvalidArguments, naming each one that is wrong."""
        try:
            arguments = parse_json(arguments_json)
        except JsonTextError as error:
            raise InvalidArguments([Violation("", f"the arguments are not JSON: {error}")]) from None
        if not isinstance(arguments, dict):
            kind = "null" if arguments is None else type(arguments).__name__
            raise InvalidArguments([Violation("", f"the arguments must be a JSON object, not {kind}")])
        violations: list[Violation] = []
        try:
            for found in self._validator.iter_errors(arguments):
                violations.extend(self._describe(found))
                if len(violations) >= _MAX_VIOLATIONS:
                    break
        except ValueError:  # nested deeper than the validator goes, or a lone surrogate
            violations = [Violation("", "the arguments are nested too deeply or are not valid Unicode")]
        if violations:
            raise InvalidArguments(violations[:_MAX_VIOLATIONS])
        return arguments

    def _describe(self, error: jsonschema_rs.ValidationError) -> list[Violation]:
        path = list(error.instance_path)
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        kind = error.kind
        if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
            name = f"{where}.{kind.property}" if where else kind.property
            return [Violation(name, f"argument {name!r} is missing")]
        if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
            known = ", ".join(map(repr, self._known)) or "none"
            hint = "" if where else f": the tool takes {known}"
            names = [f"{where}.{name}" if where else name for name in kind.unexpected]
            return [Violation(name, f"argument {name[:80]!r} is not known{hint}") for name in names]
        problem = error.message[:_MAX_PROBLEM_CHARS]
        return [Violation(where, f"argument {where!r}: {problem}" if where else f"the arguments: {problem}")]
