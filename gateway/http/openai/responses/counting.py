"""`POST /v1/responses/input_tokens`: counts the tokens of the prompt of a response."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.openai.forms import read_form
from gateway.http.openai.responses.forms import ResponseForm
from gateway.http.openai.responses.requests import system_request_of
from gateway.http.openai.responses.resolving import earlier_messages
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient


def counting_routes(settings: HttpSettings) -> list[Route]:
    """Return the path that counts tokens."""

    async def count(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        sent = {name: value for name, value in read_object(body or b"{}").items() if value is not None}
        form = read_form({"input": "", **sent}, ResponseForm)
        asked = system_request_of(
            form, settings.alias_of(form.model), settings.call_s, await earlier_messages(client, form)
        )
        if not form.input:
            del asked.messages[-1]  # The empty message stands for the input that was not sent.
        messages, tools = await prompt_of(client, asked), await tools_of(client, asked)
        counted = await client.count_tokens(messages=messages, tools=tools, model=asked.hints.model)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": counted.chat_tokens})

    return [Route("/v1/responses/input_tokens", count, methods=["POST"])]


async def prompt_of(client: AsyncClient, asked: execution_pb2.SystemRequest) -> list[message_pb2.Message]:
    """Return the messages that the model would see, with the system prompt and a system message joined."""
    parts, messages = [await _system_prompt(client, asked)], list(asked.messages)
    if messages and messages[0].role == message_pb2.ROLE_SYSTEM:
        parts.append(messages.pop(0).content)
    system = "\n\n".join(part for part in parts if part)
    if system:
        messages.insert(0, message_pb2.Message(role=message_pb2.ROLE_SYSTEM, content=system))
    return messages


async def _system_prompt(client: AsyncClient, asked: execution_pb2.SystemRequest) -> str:
    if not asked.prompt.HasField("template"):
        return asked.prompt.text
    template = asked.prompt.template
    return await client.render_prompt_template(template.name, template.variables, session_id=asked.session_id)


async def tools_of(client: AsyncClient, asked: execution_pb2.SystemRequest) -> Sequence[message_pb2.ToolDefinition]:
    """Return the tools that the model would be offered: the tools that the request names, and the caller's."""
    choice = asked.hints.tool_choice
    if choice.mode == message_pb2.TOOL_CHOICE_MODE_NONE and not choice.tool_name:
        return ()
    if not asked.tools:
        return asked.client_tools
    listed = [tool.definition for tool in await client.list_tools() if tool.definition.name in asked.tools]
    return [*listed, *asked.client_tools]
