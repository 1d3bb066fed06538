"""Tool calls as JSON: the schema that makes any model give a valid one, and the reading of what it gave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.json_text import JsonTextError, dump_json, parse_json
from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode, ToolDefinition
from services.inference.core.chat import parameters_of

_HERMES_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCE = re.compile(r"\A```[a-z]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_CALL_OPENINGS = ("{", "[", "```", "<tool_call>")


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


def may_become_call(text: str) -> bool:
    """Tell whether text that has begun so may turn out to be tool calls, and so is not to be shown yet."""
    start = text.lstrip()
    return any(start.startswith(opening) or opening.startswith(start) for opening in _CALL_OPENINGS)


def parse_calls(text: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the calls in `text` as (name, arguments as JSON text); empty when it is an answer.

    Understood are Hermes `<tool_call>` blocks, and JSON objects or arrays of them, bare or fenced. A name that was not
    offered makes the text an answer: models invent tools.
    """
    blocks = _HERMES_CALL.findall(text)
    if not blocks:
        fenced = _FENCE.match(text.strip())
        blocks = [fenced.group(1) if fenced else text]
    calls: list[tuple[str, str]] = []
    for block in blocks:
        try:
            value = parse_json(block.strip(), is_rewritable=True)
        except JsonTextError:
            return []
        for item in value if isinstance(value, list) else [value]:
            call = _read_call(item, names)
            if call is None:
                return []
            calls.append(call)
    return calls


def _read_call(value: Any, names: Sequence[str]) -> tuple[str, str] | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    return (value["name"], dump_json(arguments)) if isinstance(arguments, dict) else None


class CallWatch:
    """Separates an answer from tool calls while the text arrives.

    Args:
        names: Tools that may be called; empty: all text is answer.
        is_enforced: The decoder produces a call, so no text is answer.
    """

    def __init__(self, names: Sequence[str], *, is_enforced: bool) -> None:
        self._names = tuple(names)
        self._is_enforced = is_enforced
        self._text = ""
        self._is_answer = not names

    def feed(self, text: str) -> str:
        """Take the next text and return what may be shown as answer now."""
        if self._is_answer:
            return text
        self._text += text
        if self._is_enforced or may_become_call(self._text):
            return ""
        self._is_answer = True
        return self._text

    def finish(self) -> tuple[str, list[tuple[str, str]]]:
        """Return the rest of the answer and the calls, of which one is empty."""
        if self._is_answer:
            return "", []
        calls = parse_calls(self._text, self._names)
        return ("" if calls or self._is_enforced else self._text), calls
