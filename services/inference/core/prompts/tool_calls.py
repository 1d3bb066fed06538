"""The tools that a model may call, and the constraint that makes any model give a valid call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.text.json_text import dump_json, parse_json
from pagantic_common.grammar.json_schema import at_path
from services.inference.core.generation import ChatPrompt, Constraint, ConstraintKind


def offered_tools(tools: Sequence[ToolDefinition], choice: ToolChoice) -> tuple[ToolDefinition, ...]:
    """Return the tools that the model may call under `choice`; raises InvalidRequest if `choice` needs another."""
    if choice.tool_name:
        named = tuple(tool for tool in tools if tool.name == choice.tool_name)
        if not named:
            raise InvalidRequest(
                f"tool_choice names {choice.tool_name!r}, which is not among the offered tools",
                code=ErrorCode.TOOL_NOT_FOUND,
            )
        return named
    if choice.mode is ToolChoiceMode.NONE:
        return ()
    if choice.mode is ToolChoiceMode.REQUIRED and not tools:
        raise InvalidRequest("tool_choice is REQUIRED but no tool is offered")
    return tuple(tools)


def shown_tools(prompt: ChatPrompt) -> tuple[ToolDefinition, ...]:
    """Return the tools that the model is shown."""
    if not prompt.tools:
        return ()
    return offered_tools(prompt.tools, prompt.tool_choice)


def call_constraint(prompt: ChatPrompt) -> Constraint:
    """Return the constraint of an enforced call; raises InvalidRequest when no tool can be called."""
    tools = offered_tools(prompt.tools, prompt.tool_choice)
    return Constraint(ConstraintKind.SCHEMA, call_schema(tools))


def parameters_of(tool: ToolDefinition) -> Any:
    """Return a tool's parameter schema; a tool without one takes any object."""
    if not tool.parameters_json:
        return {"type": "object"}
    return parse_json(tool.parameters_json, is_rewritable=True)


def call_schema(tools: Sequence[ToolDefinition]) -> str:
    """Return the JSON Schema, as text, of one call of one of `tools`; name comes before arguments."""
    if len(tools) == 1:
        return dump_json(_variant(tools[0], ""))
    return dump_json({"anyOf": [_variant(tool, f"/anyOf/{index}") for index, tool in enumerate(tools)]})


def _variant(tool: ToolDefinition, path: str) -> dict[str, Any]:
    """Return the schema of a call of one tool, to stand at a path."""
    arguments = at_path(parameters_of(tool), f"{path}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
