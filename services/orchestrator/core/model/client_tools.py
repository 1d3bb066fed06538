"""Tools that the caller runs itself: their definitions, their calls, and the results that the caller owes."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import check_tool_name
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MAX_CLIENT_TOOLS = 128


def check_client_tools(tools: Sequence[ToolDefinition], registered: Sequence[str]) -> None:
    """Raise InvalidRequest for a definition that models cannot be offered, and for a name that is used twice."""
    if len(tools) > MAX_CLIENT_TOOLS:
        raise InvalidRequest(f"client_tools has {len(tools)} entries: it takes at most {MAX_CLIENT_TOOLS}")
    names = set(registered)
    for tool in tools:
        check_tool_name(tool.name)
        if tool.name in names:
            raise InvalidRequest(f"tool name {tool.name!r} appears twice in client_tools and tools: names must differ")
        names.add(tool.name)
        _check_parameters(tool)


def _check_parameters(tool: ToolDefinition) -> None:
    if not tool.parameters_json:
        return
    where = f"parameters_json of client tool {tool.name!r}"
    try:
        schema = parse_json(tool.parameters_json, is_rewritable=True)
    except JsonTextError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from None
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise InvalidRequest(f"{where} must be a JSON Schema of type object")


def check_results(history: Sequence[Message], turn: Sequence[Message]) -> None:
    """Raise InvalidRequest if a conversation ends with calls and the turn does not begin with their results."""
    owed: dict[str, str] = {}
    for message in history:
        if message.role is not Role.TOOL:  # a conversation that went on without the results waits no more
            owed = {call.id: call.name for call in message.tool_calls}
        owed.pop(message.tool_call_id, None)
    for message in turn:
        if message.role not in (Role.SYSTEM, Role.TOOL):
            break
        owed.pop(message.tool_call_id, None)
    if owed:
        calls = ", ".join(f"{call_id!r} ({name})" for call_id, name in owed.items())
        raise InvalidRequest(
            f"the conversation waits for the results of calls {calls}: begin messages with them, with the role TOOL"
        )
