"""Checks structured results against the schemas that their tools declare.

The SDK's own check matches patterns in exponential time, and patterns are the server's.
"""

from __future__ import annotations

from collections.abc import Iterable

from mcp import types

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.grammar.schema_problems import describe_problem
from pagantic_common.grammar.schema_validator import SchemaError, Validator, build_validator
from pagantic_common.telemetry.logging import get_logger

log = get_logger(__name__)

_MAX_PROBLEM_CHARS = 300


class OutputCheck:
    """Holds the validators of a session's tools."""

    def __init__(self) -> None:
        self._validators: dict[str, Validator] = {}

    def learn(self, tools: Iterable[types.Tool]) -> None:
        """Take these tools in place of those before; a schema that cannot be used is logged, and checks nothing."""
        self._validators = {}
        for tool in tools:
            if tool.output_schema is None:
                continue
            try:
                self._validators[tool.name] = build_validator(tool.output_schema, mask="the value")
            except SchemaError as error:
                log.warning("an output schema of an mcp server is not used", tool=tool.name[:80], reason=str(error))

    async def check(self, name: str, result: types.CallToolResult) -> None:
        """Raise ToolFailed for structured content that breaks the tool's schema."""
        validator = self._validators.get(name)
        if validator is None or result.structured_content is None:
            return
        try:
            problem = next(iter(validator.iter_errors(result.structured_content)), None)
        except ValueError:  # the validator's own limit of nesting
            raise ToolFailed("its result is nested too deeply to be checked") from None
        if problem is not None:
            words = describe_problem(problem)[:_MAX_PROBLEM_CHARS]
            raise ToolFailed(f"its result does not have the form that it declares: {words}")
