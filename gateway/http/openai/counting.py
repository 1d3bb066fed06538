"""Counts the tokens of a prompt without calling the model."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient


async def count_prompt(client: AsyncClient, request: execution_pb2.SystemRequest) -> int:
    """Return the number of tokens that the model would read: the request's messages, instructions and tools.

    The orchestrator's additions, such as retrieved context and the schema of the answer, are not counted.
    """
    parts, messages = [await _system_prompt(client, request)], list(request.messages)
    if messages and messages[0].role == message_pb2.ROLE_SYSTEM:
        parts.append(messages.pop(0).content)
    if system := "\n\n".join(part for part in parts if part):
        messages.insert(0, message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content=system))
    tools = await _offered_tools(client, request)
    counted = await client.count_tokens(messages=messages, tools=tools, model=request.hints.model)
    return counted.chat_tokens


async def _system_prompt(client: AsyncClient, request: execution_pb2.SystemRequest) -> str:
    if not request.prompt.HasField("template"):
        return request.prompt.text
    template = request.prompt.template
    return await client.render_prompt_template(template.name, template.variables, session_id=request.session_id)


async def _offered_tools(
    client: AsyncClient, request: execution_pb2.SystemRequest
) -> Sequence[message_pb2.ToolDefinition]:
    """Return the tools that the model would be offered: the caller's tools and the tools that the request names."""
    choice = request.hints.tool_choice
    if choice.mode == message_pb2.TOOL_CHOICE_MODE_NONE and not choice.tool_name:
        return ()
    tools = list(request.client_tools)
    if request.tools:
        listed = [tool.definition for tool in await client.list_tools() if tool.definition.name in request.tools]
        tools = [*listed, *tools]
    return [tool for tool in tools if choice.tool_name in ("", tool.name)]
