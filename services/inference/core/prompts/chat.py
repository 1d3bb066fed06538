"""Turns a conversation into the input of the model's chat template, whether or not that template knows tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagantic_common.domain.images import split_content
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from services.inference.core.generation import ChatPrompt
from services.inference.core.prompts.control_text import IMAGE_MARK
from services.inference.core.prompts.tool_calls import parameters_of, shown_tools

_STRING_BOUNDS = ("pattern", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The messages and tools that a chat template renders, and the names of the tools that the model may call."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_names: tuple[str, ...]


def template_input(prompt: ChatPrompt, *, knows_tools: bool) -> TemplateInput:
    """Return a conversation for a template; raises InvalidRequest if the tool choice needs another tool.

    If the template knows no tools, the model may call one only where the decoder enforces the call.
    """
    tools = shown_tools(prompt)
    names = tuple(tool.name for tool in tools)
    if knows_tools:
        return TemplateInput(template_messages(prompt.messages), template_tools(tools), names)
    if prompt.tool_choice.is_enforced:
        return TemplateInput(plain_messages(prompt.messages, tools), [], names)
    return TemplateInput(plain_messages(prompt.messages, ()), [], ())


def template_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return tools in the form of chat templates."""
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
    """Return messages in the form of templates that know tools."""
    rendered: list[dict[str, Any]] = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role.value, "content": _content(message)}
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


def _content(message: Message) -> str | list[str | None]:
    """Return the text of a message; if it has images, its texts in a list, and None for each image."""
    if not message.images:
        return message.content
    return [part if isinstance(part, str) else None for part in split_content(message.content, message.images)]


def with_image_marks(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose contents are texts, with a mark for each image; other texts must have no such mark."""
    return [
        {**message, "content": "".join(IMAGE_MARK if part is None else part for part in content)}
        if isinstance(content := message["content"], list)
        else message
        for message in messages
    ]


def with_joined_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with all system messages joined into one, which comes first."""
    system = [message["content"] for message in messages if message["role"] == Role.SYSTEM.value]
    if not system:
        return list(messages)
    others = [message for message in messages if message["role"] != Role.SYSTEM.value]
    return [{"role": Role.SYSTEM.value, "content": "\n\n".join(system)}, *others]


def plain_messages(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return messages for a template that knows no tools: calls and results become text.

    A system message describes `tools`, one of which the decoder will enforce.
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
    if message.images:
        return {"role": message.role.value, "content": _content(message)}
    calls = [dump_json({"name": call.name, "arguments": _arguments(call)}) for call in message.tool_calls]
    parts = [message.content, *calls]
    return {"role": message.role.value, "content": "\n".join(part for part in parts if part)}


def _describe(tools: Sequence[ToolDefinition]) -> str:
    lines = ["You can call these functions:"]
    lines += [f"- {tool.name}: {tool.description} Parameters: {_outline(tool.parameters_json)}" for tool in tools]
    lines.append('Answer with one JSON object: {"name": <function>, "arguments": {<parameters>}}')
    return "\n".join(lines)


def _outline(parameters_json: str) -> str:
    """Return a parameter schema without bounds on strings: the decoder enforces them, and they confuse small models."""
    if not parameters_json:
        return ""
    schema = parse_json(parameters_json, is_rewritable=True)
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return parameters_json
    kept = {name: _without_bounds(entry) for name, entry in schema["properties"].items()}
    return dump_json({**schema, "properties": kept})


def _without_bounds(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: value for key, value in entry.items() if key not in _STRING_BOUNDS}


def _arguments(call: ToolCall) -> Any:
    try:
        return parse_json(call.arguments_json or "{}", is_rewritable=True)
    except JsonTextError:
        return call.arguments_json
