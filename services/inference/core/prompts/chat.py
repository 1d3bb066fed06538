"""A conversation as the model's template takes it, also where the template knows no tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagantic_common.domain.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolDefinition


def parameters_of(tool: ToolDefinition) -> Any:
    """Return a tool's parameter schema; any object where it has none."""
    return parse_json(tool.parameters_json, is_rewritable=True) if tool.parameters_json else {"type": "object"}


def template_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return tools in the form that chat templates take."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": parameters_of(tool),
            },
        }
        for tool in tools
    ]


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in the form that templates with tools take."""
    rendered: list[dict[str, Any]] = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role.value, "content": message.content}
        if message.reasoning:
            entry["reasoning_content"] = message.reasoning
        if message.tool_calls:
            entry["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
                for call in message.tool_calls
            ]
        if message.role is Role.TOOL:
            entry |= {"tool_call_id": message.tool_call_id, "name": message.name}
        rendered.append(entry)
    return rendered


def with_joined_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rendered messages with every system message joined to one at the beginning, by blank lines."""
    system = [message["content"] for message in messages if message["role"] == Role.SYSTEM.value]
    others = [message for message in messages if message["role"] != Role.SYSTEM.value]
    first = [{"role": Role.SYSTEM.value, "content": "\n\n".join(system)}] if system else []
    return [*first, *others]


def plain_messages(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return messages for a template without tools: calls and results as text, `tools` described to the model.

    `tools` are those that the decoder will enforce a call of; without enforcement such a model is told of none.
    """
    rendered = [_plain_message(message) for message in messages]
    if not tools:
        return rendered
    described = _describe(tools)
    if rendered and rendered[0]["role"] == Role.SYSTEM.value:
        rendered[0]["content"] += "\n\n" + described
        return rendered
    return [{"role": Role.SYSTEM.value, "content": described}, *rendered]


def _plain_message(message: Message) -> dict[str, Any]:
    if message.role is Role.TOOL:
        return {"role": Role.USER.value, "content": f"Result of {message.name}: {message.content}"}
    calls = [dump_json({"name": call.name, "arguments": _arguments(call)}) for call in message.tool_calls]
    content = "\n".join([message.content, *calls] if message.content else calls) if calls else message.content
    return {"role": message.role.value, "content": content}


def _describe(tools: Sequence[ToolDefinition]) -> str:
    lines = ["You can call these functions:"]
    lines += [f"- {tool.name}: {tool.description} Parameters: {_outline(tool.parameters_json)}" for tool in tools]
    lines.append('Answer with one JSON object: {"name": <function>, "arguments": {<parameters>}}')
    return "\n".join(lines)


def _outline(parameters_json: str) -> str:
    """Return a parameter schema without the bounds that the decoder sees to anyway: they only confuse a small model."""
    schema = parse_json(parameters_json, is_rewritable=True) if parameters_json else {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return parameters_json
    bounds = {"pattern", "minLength", "maxLength"}
    kept = {
        name: {key: value for key, value in entry.items() if key not in bounds} if isinstance(entry, dict) else entry
        for name, entry in properties.items()
    }
    return dump_json({**schema, "properties": kept})


def _arguments(call: ToolCall) -> Any:
    try:
        return parse_json(call.arguments_json or "{}", is_rewritable=True)
    except JsonTextError:
        return call.arguments_json
