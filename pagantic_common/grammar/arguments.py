"""Checks arguments against a tool's schema before the tool runs. Patterns are matched in linear time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jsonschema_rs

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.grammar.schema_problems import describe_problem, missing_field, unexpected_fields
from pagantic_common.grammar.schema_validator import SchemaError, build_validator

MAX_VIOLATIONS = 10
_MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """A problem with an argument. `argument` is empty for a problem with all the arguments."""

    argument: str
    problem: str


class InvalidArguments(Exception):
    """The arguments do not satisfy the schema. The exception contains at most ten violations."""

    def __init__(self, *violations: ArgumentProblem) -> None:
        super().__init__("; ".join(violation.problem for violation in violations))
        self.violations = violations

    @property
    def details(self) -> dict[str, Any]:
        """The violations as the details of an error."""
        violations = [{"argument": violation.argument, "problem": violation.problem} for violation in self.violations]
        return {"violations": violations}


class ArgumentChecker:
    """Checks the arguments of a tool. Raises InvalidRequest if the schema is not valid.

    Args:
        tool_name: Name of the tool, for messages.
        parameters_json: JSON Schema of type object, in the draft that its `$schema` names.
    """

    def __init__(self, tool_name: str, parameters_json: str) -> None:
        try:
            schema = parse_json(parameters_json)
        except JsonTextError as error:
            raise InvalidRequest(f"the parameters of tool {tool_name!r} are not JSON: {error}") from None
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise InvalidRequest(f"the parameters of tool {tool_name!r} must be a schema of type 'object'")
        try:
            # The mask keeps argument values out of messages, because they may be secrets.
            self._validator = build_validator(schema, mask="the value")
        except SchemaError as error:
            raise InvalidRequest(f"the parameters of tool {tool_name!r} are a schema that {error}") from None
        self._known = tuple(schema.get("properties", {}))

    def parse(self, arguments_json: str) -> dict[str, Any]:
        """Return the parsed arguments. Raises InvalidArguments, naming each invalid argument."""
        try:
            arguments = parse_json(arguments_json)
        except JsonTextError as error:
            raise InvalidArguments(ArgumentProblem("", f"the arguments are not JSON: {error}")) from None
        if arguments is None:
            raise InvalidArguments(ArgumentProblem("", "the arguments must be a JSON object, not null"))
        if not isinstance(arguments, dict):
            kind = type(arguments).__name__
            raise InvalidArguments(ArgumentProblem("", f"the arguments must be a JSON object, not {kind}"))
        try:
            violations = tuple(islice(self._find_problems(arguments), MAX_VIOLATIONS))
        except ValueError:  # The arguments exceed the validator's nesting limit, or contain a lone surrogate.
            problem = ArgumentProblem("", "the arguments are nested too deeply or are not valid Unicode")
            raise InvalidArguments(problem) from None
        if violations:
            raise InvalidArguments(*violations)
        return arguments

    def _find_problems(self, arguments: dict[str, Any]) -> Iterator[ArgumentProblem]:
        for error in self._validator.iter_errors(arguments):
            path = list(error.instance_path)
            if (missing := missing_field(error)) is not None:
                name = name_of([*path, missing])
                yield ArgumentProblem(name, f"argument {name!r} is missing")
            elif unexpected := unexpected_fields(error, arguments):
                yield from self._unknown_arguments(path, unexpected)
            else:
                yield _wrong_value(name_of(path), error)

    def _unknown_arguments(self, path: list[str | int], unexpected: Iterable[str]) -> Iterator[ArgumentProblem]:
        hint = ""
        if not path:
            hint = f": the tool takes {', '.join(map(repr, self._known)) or 'none'}"
        for field in unexpected:
            name = name_of([*path, field])
            yield ArgumentProblem(name, f"argument {name[:80]!r} is not known{hint}")


def _wrong_value(name: str, error: jsonschema_rs.ValidationError) -> ArgumentProblem:
    problem = describe_problem(error)[:_MAX_PROBLEM_CHARS]
    if not name:
        return ArgumentProblem("", f"the arguments: {problem}")
    return ArgumentProblem(name, f"argument {name!r}: {problem}")


def name_of(path: Iterable[str | int]) -> str:
    """Return a path in the form `days[1].hour`. The path is empty for the whole arguments object."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}"
    return name.removeprefix(".")
