"""Which tools may be called, and the schema that makes any model give a valid call."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.json_text import dump_json
from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode, ToolDefinition
from services.inference.core.prompts.chat import parameters_of


def offered_tools(tools: Sequence[ToolDefinition], choice: ToolChoice) -> tuple[ToolDefinition, ...]:
    """Return the tools that may be called under `choice`; raises InvalidRequest when that cannot be satisfied."""
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


def call_schema(tools: Sequence[ToolDefinition]) -> str:
    """Return the JSON Schema, as text, of one call of one of `tools`; name comes before arguments."""
    variants = []
    for tool in tools:
        properties = {"name": {"const": tool.name}, "arguments": parameters_of(tool)}
        variants.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return dump_json(variants[0] if len(variants) == 1 else {"anyOf": variants})
