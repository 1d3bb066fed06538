"""`POST /v1/responses`: runs the requests of clients."""

from __future__ import annotations

import time
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import read_form, require_model
from gateway.http.openai.responses.forms import ResponseForm
from gateway.http.openai.responses.requests import head_of
from gateway.http.openai.responses.resolving import resolve
from gateway.http.openai.responses.stream import ResponseEvents
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import send_answer
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest


def creation_routes(settings: HttpSettings) -> list[Route]:
    """Return the path that makes responses."""

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        value = read_object(body)
        require_model(value)
        form = read_form(value, ResponseForm)
        if form.background and not form.is_stored:
            raise InvalidRequest("store is false: a response in the background is read from the store")
        sent = await resolve(client, form, request, settings)
        head = head_of(form, sent, int(time.time()))
        if form.stream:
            return send_answer(client.stream(sent), ResponseEvents(head), sent.request_id)
        if form.background:
            async with aclosing(client.stream(sent)) as events:
                await anext(events)
            return JSONResponse(head.queued())
        return JSONResponse(head.ended(completed(await client.execute(sent))))

    return [Route("/v1/responses", create, methods=["POST"])]
