"""Chooses the tools that a model is offered when there are more than fit."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pagantic_common.domain.messages import Message, Role, ToolDefinition

MAX_SEARCHED = 100
QUERY_MESSAGES = 3


def size_bytes(tool: ToolDefinition) -> int:
    """Return how much of a prompt a tool takes, in bytes of UTF-8."""
    texts = (tool.name, tool.description, tool.parameters_json)
    return sum(len(text.encode(errors="replace")) for text in texts)


def fit_together(tools: Sequence[ToolDefinition], max_bytes: int) -> bool:
    """Return whether all tools may be offered; 0 bytes is unlimited."""
    return not max_bytes or sum(map(size_bytes, tools)) <= max_bytes


def query_of(messages: Sequence[Message]) -> str:
    """Return the words that tools are searched for: the last messages of the user."""
    texts = [message.content for message in messages if message.role is Role.USER]
    return "\n".join(texts[-QUERY_MESSAGES:])


def called_names(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools that a conversation has called, the last first."""
    return list(dict.fromkeys(call.name for message in reversed(messages) for call in message.tool_calls))


def select(tools: Sequence[ToolDefinition], preferred: Collection[str], max_bytes: int) -> tuple[ToolDefinition, ...]:
    """Return the preferred tools that fit, the first of them in any case, in the order of `tools`."""
    by_name = {tool.name: tool for tool in tools}
    chosen: set[str] = set()
    left_bytes = max_bytes
    for name in preferred:
        if name not in by_name:
            continue
        taken_bytes = size_bytes(by_name[name])
        if not chosen or taken_bytes <= left_bytes:
            chosen.add(name)
            left_bytes -= taken_bytes
    return tuple(tool for tool in tools if tool.name in chosen)
