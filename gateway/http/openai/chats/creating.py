"""`/v1/chat/completions`: runs the requests of OpenAI clients."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import apart, read_object
from gateway.http.openai.answers import (
    ChatCompletion,
    ChatEvent,
    ChoiceChunks,
    Heading,
    completion_of,
    usage_chunk,
)
from gateway.http.openai.chats.stored import ID_PREFIX, KIND
from gateway.http.openai.choices import as_choice, execute_all, stream_all
from gateway.http.openai.forms import ChatForm, read_form, require_model
from gateway.http.openai.kept import keep
from gateway.http.openai.models import DefaultName
from gateway.http.openai.requests import request_of
from gateway.http.operations import OPENAI, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient


def chat_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operation that answers chats."""
    default_name = DefaultName(settings)

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer a conversation."""
        value = read_object(body)
        require_model(value)
        form = await apart(body, read_form, value, ChatForm)
        name = await default_name.or_sent(form.model, client, request)
        chat = await apart(body, Chat, form, name, settings, request.scope["request_id"])
        request.scope["request_id"] = chat.request_id
        if chat.streams:
            return chat.stream(client)
        return JSONResponse(await chat.complete(client))

    return [
        Operation(
            OPENAI,
            "POST /v1/chat/completions",
            create,
            "createChat",
            ChatForm,
            ChatCompletion,
            ChatEvent,
            required=("model",),
            makes="completion_id",
        )
    ]


class Chat:
    """A request to `/v1/chat/completions`.

    Args:
    form: The body. Raises InvalidRequest if the request is invalid.
    name: The name of the model in the answer.
    settings: The settings that define the model names and limit the duration.
    request_id: Id of the first choice. The ids of the other choices append their numbers to it.
    """

    def __init__(self, form: ChatForm, name: str, settings: HttpSettings, request_id: str) -> None:
        self._form = form
        request = request_of(self._form, settings.alias_of(self._form.model), settings.call_s)
        self.request_id = request.request_id or request_id
        self._requests = [as_choice(request, self.request_id, index, index) for index in range(self._form.n or 1)]
        has_usage = self.streams and self._form.includes_usage
        self._heading = Heading(ID_PREFIX + self.request_id, name, int(time.time()), has_usage)
        if self._form.store:
            _keep(self._requests, self._heading, self._form)

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream."""
        return bool(self._form.stream)

    async def complete(self, client: AsyncClient) -> ChatCompletion:
        """Return the complete answer. Raises PaganticError if a choice fails."""
        return completion_of(self._heading, await execute_all(client, self._requests), self._form.ignored)

    def stream(self, client: AsyncClient) -> AsyncGenerator[str, None]:
        """Return the answer as a stream of server-sent events."""
        choices = [ChoiceChunks(self._heading, index, self._form.ignored) for index in range(len(self._requests))]
        make_usage = partial(usage_chunk, self._heading) if self._heading.has_usage else None
        return stream_all(client, self._requests, choices, make_usage)


def _keep(requests: Sequence[execution_pb2.SystemRequest], heading: Heading, form: ChatForm) -> None:
    """Mark the executions of a chat to be kept. The first execution represents the chat."""
    echo = {
        "model": heading.model,
        "created": heading.created_s,
        "metadata": form.metadata or {},
        "n": len(requests),
    }
    for index, request in enumerate(requests):
        keep(request, KIND if index == 0 else f"{KIND}.choice", echo)
