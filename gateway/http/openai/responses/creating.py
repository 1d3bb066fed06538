"""`/v1/responses`: makes responses, compacts conversations into summaries, and counts the tokens of an input."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Literal, NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, read_object, take_request_id
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form, require_model
from gateway.http.openai.responses.conversations import MAX_RECENT
from gateway.http.openai.responses.forms import CountForm, ResponseForm, SummaryForm
from gateway.http.openai.responses.objects import ResponseHead, ResponseObject
from gateway.http.openai.responses.requests import head_of, system_request_of
from gateway.http.openai.responses.stored import said_before
from gateway.http.openai.responses.stream import ResponseEvent, ResponseEvents
from gateway.http.openai.responses.summaries import Compaction, ask_for_summary, compaction_of
from gateway.http.operations import OPENAI, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import send_answer
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import InvalidRequest


class InputTokens(AnswerShape):
    """The number of tokens that a response would read."""

    object: Literal["response.input_tokens"]
    input_tokens: int
    pagantic: NotRequired[IgnoredFields]


def creation_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations that make responses and summaries, and that count tokens."""

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer an input."""
        value = read_object(body)
        require_model(value)
        form = await apart(body, read_form, value, ResponseForm)
        if form.background and not form.is_stored:
            raise InvalidRequest("store is false: a response in the background is read from the store")
        sent = await _resolve(client, form, request, settings)
        head = head_of(form, sent, int(time.time()))
        if form.stream:
            return send_answer(client.stream(sent), ResponseEvents(head), sent.request_id)
        if form.background:
            async with aclosing(client.stream(sent)) as events:
                await anext(events)
            return JSONResponse(head.queued())
        return JSONResponse(head.ended(completed(await client.execute(sent))))

    async def compact(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Summarize a conversation."""
        value = read_object(body)
        require_model(value)
        form = await apart(body, read_form, value, SummaryForm)
        sent = await _resolve(client, form, request, settings)
        ask_for_summary(sent)
        response = completed(await client.execute(sent))
        return JSONResponse(naming_ignored(compaction_of(ResponseHead(sent, {}), int(time.time()), response), form))

    async def count(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        """Count the tokens that a response would read."""
        fields = {name: value for name, value in read_object(body or b"{}").items() if value is not None}
        form = await apart(body, read_form, {"input": "", **fields}, CountForm)
        earlier = await _earlier_messages(client, form)
        system_request = system_request_of(form, settings.alias_of(form.model), settings.call_s, earlier)
        if not form.input:
            del system_request.messages[-1]  # Remove the empty message that stands for an input that was not sent.
        messages, tools = await prompt_of(client, system_request), await tools_of(client, system_request)
        counted = await client.count_tokens(messages=messages, tools=tools, model=system_request.hints.model)
        tokens: InputTokens = {"object": "response.input_tokens", "input_tokens": counted.chat_tokens}
        return JSONResponse(naming_ignored(tokens, form))

    return [
        Operation(
            OPENAI,
            "POST /v1/responses",
            create,
            "createResponse",
            ResponseForm,
            ResponseObject,
            ResponseEvent,
            required=("model",),
            makes="response_id",
        ),
        Operation(
            OPENAI,
            "POST /v1/responses/compact",
            compact,
            "compactResponse",
            SummaryForm,
            Compaction,
            required=("model",),
        ),
        Operation(
            OPENAI,
            "POST /v1/responses/input_tokens",
            count,
            "countInputTokens",
            CountForm,
            InputTokens,
            may_be_empty=True,
        ),
    ]


async def _resolve(
    client: AsyncClient, form: ResponseForm, request: Request, settings: HttpSettings
) -> execution_pb2.SystemRequest:
    """Return the request for a form, with the id that the client receives.

    Raises NotFound for an unknown conversation or previous response, or InvalidRequest for an unsupported feature.
    """
    is_stored = bool(form.conversation_id)
    if is_stored:
        page = pb.GetSessionRequest(session_id=form.conversation_id, max_messages=MAX_RECENT)
        earlier: Sequence[message_pb2.Message] = (await client.get_session_page(page)).messages
    else:
        earlier = await _earlier_messages(client, form)
    made = system_request_of(form, settings.alias_of(form.model), settings.call_s, earlier, stored=is_stored)
    take_request_id(made, request)
    return made


async def _earlier_messages(client: AsyncClient, form: ResponseForm) -> Sequence[message_pb2.Message]:
    """Return the messages of a form's conversation, or all messages up to its previous response.

    Raises NotFound if the conversation or the response is unknown.
    """
    if form.conversation_id:
        return await _conversation(client, form.conversation_id)
    if form.previous_response_id:
        return await said_before(client, form.previous_response_id)
    return ()


async def _conversation(client: AsyncClient, session_id: str) -> list[message_pb2.Message]:
    """Return the messages of a conversation. Raises InvalidRequest if they do not fit into one call."""
    pages: list[Sequence[message_pb2.Message]] = []
    size_bytes = before = 0
    while True:
        page = await client.get_session_page(pb.GetSessionRequest(session_id=session_id, before_position=before))
        pages.append(page.messages)
        size_bytes += page.ByteSize()
        if size_bytes > MAX_MESSAGE_BYTES:
            raise InvalidRequest(f"conversation {session_id!r} has more than {MAX_MESSAGE_BYTES} bytes: it is too long")
        before = page.first_position
        if not before:
            return [message for messages in reversed(pages) for message in messages]


async def prompt_of(client: AsyncClient, asked: execution_pb2.SystemRequest) -> list[message_pb2.Message]:
    """Return the messages that the model would see, with the system prompt and any system message joined."""
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
    """Return the tools that the model would be offered: the caller's tools and the tools that the request names."""
    choice = asked.hints.tool_choice
    if choice.mode == message_pb2.TOOL_CHOICE_MODE_NONE and not choice.tool_name:
        return ()
    if not asked.tools:
        return asked.client_tools
    listed = [tool.definition for tool in await client.list_tools() if tool.definition.name in asked.tools]
    return [*listed, *asked.client_tools]
