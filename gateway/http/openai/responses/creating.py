"""`/v1/responses`: makes responses, compacts conversations into summaries, and counts the tokens of an input."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Literal, NotRequired

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import AnswerShape, apart, hold_stored, read_object, reading_stored, take_request_id
from gateway.http.openai.answers import completed
from gateway.http.openai.counting import count_prompt
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form, require_model
from gateway.http.openai.models import DefaultName
from gateway.http.openai.responses.forms import CountForm, ResponseForm, SummaryForm
from gateway.http.openai.responses.objects import ResponseHead, ResponseObject
from gateway.http.openai.responses.references import (
    find_calls,
    has_references,
    read_conversation,
    resolve_references,
)
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
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest


class InputTokens(AnswerShape):
    """The number of tokens that a response would read."""

    object: Literal["response.input_tokens"]
    input_tokens: int
    pagantic: NotRequired[IgnoredFields]


def creation_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations for making responses and summaries, and for counting tokens."""
    default_name = DefaultName(settings)

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer an input."""
        value = read_object(body)
        require_model(value)
        form = await apart(body, read_form, value, ResponseForm)
        if form.background and not form.is_stored:
            raise InvalidRequest("store is false: a response in the background is read from the store")
        sent = await _resolve(client, form, body, request, settings)
        name = await default_name.or_sent(form.model, client, request)
        head = head_of(form, sent, int(time.time()), name)
        if form.stream:
            opens_at_once = bool(form.background)  # The client may need the id before the execution begins.
            return send_answer(client.stream(sent), ResponseEvents(head), sent.request_id, opens_at_once=opens_at_once)
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
        sent = await _resolve(client, form, body, request, settings)
        ask_for_summary(sent)
        response = completed(await client.execute(sent))
        return JSONResponse(naming_ignored(compaction_of(ResponseHead(sent, {}), int(time.time()), response), form))

    async def count(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        """Count the tokens that a response would read."""
        fields = {name: value for name, value in read_object(body or b"{}").items() if value is not None}
        sent = await apart(body, read_form, {"input": "", **fields}, CountForm)
        async with _reading(sent, body):
            form = await _with_stored_items(client, sent)
            earlier = await _earlier_messages(client, form)
            alias = settings.alias_of(form.model)
            system_request = await apart(body, system_request_of, form, alias, settings.call_s, earlier)
            hold_stored(body, system_request.ByteSize())
        if not form.input:
            del system_request.messages[-1]  # Remove the empty message that represents a missing input.
        counted = await count_prompt(client, system_request)
        tokens: InputTokens = {"object": "response.input_tokens", "input_tokens": counted}
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
    client: AsyncClient, form: ResponseForm, body: bytes, request: Request, settings: HttpSettings
) -> execution_pb2.SystemRequest:
    """Return the request for a form, with the id that the client receives.

    Raises NotFound for an unknown conversation or previous response, or InvalidRequest for an unsupported feature.
    """
    async with _reading(form, body):
        form = await _with_stored_items(client, form)
        is_stored = bool(form.conversation_id)
        if is_stored:  # The orchestrator adds the messages. Only the names of calls are needed here.
            items = form.input if isinstance(form.input, list) else ()
            earlier: Sequence[message_pb2.Message] = await find_calls(client, form.conversation_id, items)
        else:
            earlier = await _earlier_messages(client, form)
        alias = settings.alias_of(form.model)
        made = await apart(body, system_request_of, form, alias, settings.call_s, earlier, stored=is_stored)
        hold_stored(body, made.ByteSize())
    take_request_id(made, request)
    return made


def _reading(form: ResponseForm, body: bytes) -> AbstractAsyncContextManager[object]:
    """Hold a place for reads inside the block if a form refers to stored content."""
    items = form.input if isinstance(form.input, list) else ()
    is_read = form.conversation_id or form.previous_response_id or has_references(items)
    return reading_stored(body) if is_read else nullcontext()


async def _with_stored_items(client: AsyncClient, form: ResponseForm) -> ResponseForm:
    """Return the form, with stored items in place of its references."""
    if not isinstance(form.input, list):
        return form
    return form.model_copy(update={"input": await resolve_references(client, form.input, "input")})


async def _earlier_messages(client: AsyncClient, form: ResponseForm) -> Sequence[message_pb2.Message]:
    """Return the messages of a form's conversation, or all messages up to its previous response.

    Raises NotFound if the conversation or the response is unknown.
    """
    if form.conversation_id:
        return await read_conversation(client, form.conversation_id)
    if form.previous_response_id:
        return await said_before(client, form.previous_response_id)
    return ()
