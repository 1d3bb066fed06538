"""`/v1/chat/completions`: runs what clients of OpenAI's API ask for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.failures import error_of
from gateway.http.openai.answers import Heading, completed, completion_of
from gateway.http.openai.chunks import ChoiceChunks, usage_chunk
from gateway.http.openai.forms import ChatForm, read_form, require_model
from gateway.http.openai.kept import keep
from gateway.http.openai.requests import request_of
from gateway.http.openai.stored_chats import ID_PREFIX, KIND, choice_id
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import QUIET, QUIET_S, Answer, merge_events
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PaganticError

_DONE = "data: [DONE]\n\n"


def chat_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths of chats."""

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        value = read_object(body)
        require_model(value)
        chat = Chat(value, settings, request.scope["request_id"])
        request.scope["request_id"] = chat.request_id
        if chat.streams:
            return chat.stream(client)
        return JSONResponse(await chat.complete(client))

    return [Route("/v1/chat/completions", create, methods=["POST"])]


class Chat:
    """One request of `/v1/chat/completions`.

    Args:
        value: The body as JSON; raises InvalidRequest where it is no request.
        settings: Name the models, and bound the time.
        request_id: Of the first choice; the others have its number behind it.
    """

    def __init__(self, value: Any, settings: HttpSettings, request_id: str) -> None:
        self._form: ChatForm = read_form(value, ChatForm)
        request = request_of(self._form, settings.alias_of(self._form.model), settings.call_s)
        self.request_id = request.request_id or request_id
        self._requests = [_numbered(request, self.request_id, index) for index in range(self._form.n or 1)]
        self._heading = Heading(ID_PREFIX + self.request_id, self._form.model or "default", int(time.time()))
        if self._form.store:
            _keep(self._requests, self._heading, self._form)

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream."""
        return bool(self._form.stream)

    async def complete(self, client: AsyncClient) -> dict[str, Any]:
        """Return the whole answer; raises PaganticError."""
        running = [asyncio.create_task(_execute(client, request)) for request in self._requests]
        try:
            responses = await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()  # nobody waits for the other choices of one that failed
            await asyncio.gather(*running, return_exceptions=True)
        return completion_of(self._heading, responses, self._form.ignored)

    async def stream(self, client: AsyncClient) -> AsyncGenerator[str, None]:
        """Yield server-sent events; an error after the first one is an event, too. Raises an error before it."""
        choices = [ChoiceChunks(self._heading, index, self._form.ignored) for index in range(len(self._requests))]
        has_begun = False
        try:
            async with aclosing(self._events(client, choices)) as events:
                async for event in events:
                    has_begun = True
                    yield event
        except PaganticError as error:
            if not has_begun:
                raise
            yield _event({"error": error_of(error, self.request_id)})
        else:
            if self._form.includes_usage:
                yield _event(usage_chunk(self._heading, _responses(choices)))
        yield _DONE

    async def _events(self, client: AsyncClient, choices: Sequence[ChoiceChunks]) -> AsyncGenerator[str, None]:
        """Yield the events of the answer; raises PaganticError."""
        openings = [_event(choice.first()) for choice in choices]
        async with aclosing(merge_events([client.stream(request) for request in self._requests], QUIET_S)) as events:
            async for one in events:
                while openings:
                    yield openings.pop(0)
                if one is None:
                    yield QUIET
                    continue
                position, event = one
                for chunk in choices[position].of(event):
                    yield _event(chunk)


async def _execute(client: AsyncClient, request: execution_pb2.SystemRequest) -> execution_pb2.SystemResponse:
    return completed(await client.execute(request))


def _keep(requests: Sequence[execution_pb2.SystemRequest], heading: Heading, form: ChatForm) -> None:
    """Have the executions of a chat kept: the first one is the chat."""
    echo = {
        "model": heading.model,
        "created": heading.created_s,
        "metadata": form.metadata or {},
        "n": len(requests),
    }
    for index, request in enumerate(requests):
        keep(request, KIND if index == 0 else f"{KIND}.choice", echo)


def _responses(choices: Sequence[ChoiceChunks]) -> list[execution_pb2.SystemResponse]:
    return [choice.response for choice in choices if choice.response is not None]


def _numbered(request: execution_pb2.SystemRequest, request_id: str, index: int) -> execution_pb2.SystemRequest:
    """Return the request of one choice: under an id, and with a seed, of its own."""
    own = execution_pb2.SystemRequest()
    own.CopyFrom(request)
    own.request_id = choice_id(request_id, index)
    if index and own.hints.HasField("seed"):
        own.hints.seed = (own.hints.seed + index) % (1 << 64)
    return own


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
