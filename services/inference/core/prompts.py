"""Turns a conversation into input for the model's chat template, whether or not the template supports tools.

A rendered chat prompt is tokenized so that the template's own `<|im_end|>` is the control token. If a user's message
contained these characters, it could end its turn and speak as the system. Therefore, `ControlTextGuard` hides the
control texts of messages behind marks while the template renders. Afterwards, they are tokenized as plain characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.images import split_content
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.grammar.json_schema import at_path
from services.inference.core.generation import ChatPrompt, Constraint, ConstraintKind

MAX_CACHED_SCHEMA_CHARS = 32 * 1024
_STRING_BOUNDS = ("pattern", "minLength", "maxLength")
_CALL_OBJECT = '{"name": <function>, "arguments": {<parameters>}}'
_CALL_DEMANDED = f"Answer with one JSON object: {_CALL_OBJECT}"
_CALL_OFFERED = (
    f"To call a function, answer with one JSON object and nothing else: {_CALL_OBJECT}. Otherwise answer in words."
)
# A mark encloses the number of a hidden text in these private-use characters. The guard hides these characters too, so
# that no message can contain a mark.
_OPEN, _CLOSE = "\ue000", "\ue001"
PLACE = "\ue002"  # marks where text is inserted after rendering
IMAGE_MARK = "\ue003"


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The messages and tools that a chat template renders, and the names of tools that the model may call."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_names: tuple[str, ...]


def template_input(prompt: ChatPrompt, *, knows_tools: bool) -> TemplateInput:
    """Return the template's input for a conversation. Raises InvalidRequest if a tool of the tool choice is missing.

    If the template does not support tools, a system message describes them.
    """
    tools = shown_tools(prompt)
    names = tuple(tool.name for tool in tools)
    if knows_tools:
        return TemplateInput(template_messages(prompt.messages), template_tools(tools), names)
    messages = plain_messages(prompt.messages, tools, is_enforced=prompt.tool_choice.is_enforced)
    return TemplateInput(messages, [], names)


def template_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return the tools in the form that chat templates expect."""
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
    """Return the messages in the form of templates that support tools."""
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
    """Return the text of a message.

    If the message has images, return a list of its texts with None for each image.
    """
    if not message.images:
        return message.content
    return [part if isinstance(part, str) else None for part in split_content(message.content, message.images)]


def with_image_marks(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose contents are texts with a mark per image. The texts must not contain this mark."""
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


def with_joined_neighbours(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which users and assistants alternate: neighbours of one role are joined by a blank line.

    The contents must be texts. Results of tools stay separate.
    """
    joined: list[dict[str, Any]] = []
    for message in messages:
        if not joined or joined[-1]["role"] != message["role"] or message["role"] == Role.TOOL.value:
            joined.append(message)
            continue
        last = joined[-1] = {**joined[-1]}
        for name in ("content", "reasoning_content"):
            if texts := [text for text in (last.get(name), message.get(name)) if text]:
                last[name] = "\n\n".join(texts)
        if calls := [*last.get("tool_calls", ()), *message.get("tool_calls", ())]:
            last["tool_calls"] = calls
    return joined


def plain_messages(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], *, is_enforced: bool
) -> list[dict[str, Any]]:
    """Return messages for a template that does not support tools, with calls and results written as text.

    A system message describes `tools`. With `is_enforced`, the decoder will enforce a call of one of these tools.
    Otherwise, earlier calls are written in words, because small models copy a visible call instead of answering. While
    tools can be called, the words are part of the results, so that models do not copy them instead of a call.
    """
    if not tools:
        return [_plain_message(message, _call_in_words) for message in messages]
    if is_enforced:
        rendered = [_plain_message(message, _call_object) for message in messages]
    else:
        rendered = _messages_with_told_calls(messages)
    described = _describe(tools, is_enforced=is_enforced)
    if rendered and rendered[0]["role"] == Role.SYSTEM.value:
        rendered[0]["content"] += "\n\n" + described
        return rendered
    return [{"role": Role.SYSTEM.value, "content": described}, *rendered]


def _messages_with_told_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return plain messages in which each result names its call. Only calls without a result are objects."""
    calls = {call.id: call for message in messages for call in message.tool_calls}
    answered = {message.tool_call_id for message in messages}
    rendered: list[dict[str, Any]] = []
    for message in messages:
        if message.tool_call_id in calls:
            rendered.append(_result_of_call(message, calls[message.tool_call_id]))
            continue
        rest = replace(message, tool_calls=tuple(call for call in message.tool_calls if call.id not in answered))
        if rest.is_shown or not message.tool_calls:
            rendered.append(_plain_message(rest, _call_object))
    return rendered


def _result_of_call(result: Message, call: ToolCall) -> dict[str, Any]:
    arguments = _arguments_in_words(call)
    called = f"{result.name} ({arguments})" if arguments else result.name
    return {"role": Role.USER.value, "content": f"Result of {called}: {result.content}"}


def _plain_message(message: Message, write_call: Callable[[ToolCall], str]) -> dict[str, Any]:
    if message.role is Role.TOOL:
        return {"role": Role.USER.value, "content": f"Result of {message.name}: {message.content}"}
    if message.images:
        return {"role": message.role.value, "content": _content(message)}
    parts = [message.content, *map(write_call, message.tool_calls)]
    return {"role": message.role.value, "content": "\n".join(part for part in parts if part)}


def _call_object(call: ToolCall) -> str:
    return dump_json({"name": call.name, "arguments": _arguments(call)})


def _call_in_words(call: ToolCall) -> str:
    arguments = _arguments_in_words(call)
    return f"Called {call.name}: {arguments}" if arguments else f"Called {call.name}."


def _arguments_in_words(call: ToolCall) -> str:
    arguments = _arguments(call)
    if not isinstance(arguments, dict):
        return str(arguments)
    return ", ".join(
        f"{name} {value if isinstance(value, str) else dump_json(value)}" for name, value in arguments.items()
    )


def _describe(tools: Sequence[ToolDefinition], *, is_enforced: bool) -> str:
    lines = ["You can call these functions:"]
    lines += [f"- {tool.name}: {tool.description} Parameters: {_outline(tool.parameters_json)}" for tool in tools]
    lines.append(_CALL_DEMANDED if is_enforced else _CALL_OFFERED)
    return "\n".join(lines)


def _outline(parameters_json: str) -> str:
    """Return a parameter schema without bounds on strings.

    The bounds confuse small models, and the decoder enforces them anyway.
    """
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


def offered_tools(tools: Sequence[ToolDefinition], choice: ToolChoice) -> tuple[ToolDefinition, ...]:
    """Return the tools that the model may call. Raises InvalidRequest if a tool that `choice` needs is missing."""
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
    """Return the tools to show to the model."""
    if not prompt.tools:
        return ()
    return offered_tools(prompt.tools, prompt.tool_choice)


def call_constraint(prompt: ChatPrompt, arguments_key: str = "arguments") -> Constraint:
    """Return the constraint for a call object. Raises InvalidRequest if no tool can be called."""
    tools = offered_tools(prompt.tools, prompt.tool_choice)
    return Constraint(ConstraintKind.SCHEMA, call_schema(tools, arguments_key))


def call_form_constraint(prompt: ChatPrompt, arguments_key: str = "arguments") -> Constraint:
    """Return the constraint for a call object with any arguments. Raises InvalidRequest if no tool can be called."""
    tools = offered_tools(prompt.tools, prompt.tool_choice)
    return Constraint(
        ConstraintKind.SCHEMA, call_schema([replace(tool, parameters_json="") for tool in tools], arguments_key)
    )


def parameters_of(tool: ToolDefinition) -> Any:
    """Return a tool's parameter schema. Without a schema, a tool accepts any object."""
    if not tool.parameters_json:
        return {"type": "object"}
    return parse_json(tool.parameters_json, is_rewritable=True)


def call_schema(tools: Sequence[ToolDefinition], arguments_key: str = "arguments") -> str:
    """Return, as text, the JSON Schema for a call to one of `tools`. The name comes before the arguments."""
    size = sum(len(tool.parameters_json) for tool in tools)
    if size > MAX_CACHED_SCHEMA_CHARS:
        return _call_schema(tuple(tools), arguments_key)
    return _cached_call_schema(tuple(tools), arguments_key)


def _call_schema(tools: tuple[ToolDefinition, ...], arguments_key: str) -> str:
    if len(tools) == 1:
        return dump_json(_variant(tools[0], "", arguments_key))
    variants = [_variant(tool, f"/anyOf/{index}", arguments_key) for index, tool in enumerate(tools)]
    return dump_json({"anyOf": variants})


_cached_call_schema = lru_cache(maxsize=64)(_call_schema)  # most requests of a deployment offer the same tools


def _variant(tool: ToolDefinition, path: str, arguments_key: str) -> dict[str, Any]:
    """Return the schema for a call of one tool, for use at a path of a larger schema."""
    arguments = at_path(parameters_of(tool), f"{path}/properties/{arguments_key}")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, arguments_key: arguments},
        "required": ["name", arguments_key],
        "additionalProperties": False,
    }


class ControlTextGuard:
    """Hides the control texts of one prompt. Each prompt needs a new guard."""

    def __init__(self, control_texts: Iterable[str]) -> None:
        longest_first = sorted(set(control_texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, [*longest_first, _OPEN, _CLOSE, PLACE, IMAGE_MARK])))
        self._hidden: list[str] = []

    def hide(self, value: Any) -> Any:
        """Replace every control text in the strings of a JSON value by a mark."""
        match value:
            case str():
                return self._pattern.sub(self._mark, value)
            case list():
                return [self.hide(item) for item in value]
            case dict():
                return {self.hide(key): self.hide(item) for key, item in value.items()}
            case _:
                return value

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """Return the pieces of a rendered prompt, in order.

        The flag of a piece shows whether control texts in it become control tokens.
        """
        pieces = re.split(f"{_OPEN}(\\d+){_CLOSE}", rendered)
        # Every second piece is the index of a piece of hidden text.
        pieces[1::2] = [self._hidden[int(number)] for number in pieces[1::2]]
        return [(piece, index % 2 == 0) for index, piece in enumerate(pieces) if piece]

    def _mark(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"{_OPEN}{len(self._hidden) - 1}{_CLOSE}"


class SharedPrompts:
    """The prompts that the operator declared shared between tenants, as token prefixes of one model."""

    def __init__(self, prefixes: Sequence[Sequence[int]] = ()) -> None:
        self._prefixes = sorted({tuple(prefix) for prefix in prefixes}, key=len, reverse=True)

    def shared_length(self, tokens: Sequence[int]) -> int:
        """Return the length of the longest declared prefix that a prompt begins with, or 0 if there is none.

        If a prompt begins with only a part of a declared prefix, the length is 0, so that no tenant can guess a
        declared prompt token by token.
        """
        matches = (prefix for prefix in self._prefixes if tuple(tokens[: len(prefix)]) == prefix)
        return len(next(matches, ()))
