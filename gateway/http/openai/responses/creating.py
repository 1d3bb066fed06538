"""`POST /v1/responses` and `/v1/responses/compact`: runs what clients ask for."""

from __future__ import annotations

import json
import time
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import read_form
from gateway.http.openai.responses.compaction import compacting, compaction_of
from gateway.http.openai.responses.forms import ResponseForm
from gateway.http.openai.responses.objects import ECHO_KEY, KIND, KIND_KEY, QUEUED, ResponseHead
from gateway.http.openai.responses.requests import encode_echo
from gateway.http.openai.responses.resolving import resolve
from gateway.http.openai.responses.sending import send_response
from gateway.http.openai.responses.stream import ResponseEvents
from gateway.http.running import Answer
from gateway.http.settings import HttpSettings
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import InvalidRequest


def creation_routes(settings: HttpSettings) -> list[Route]:
    """Return the paths that make responses."""
    creation = _Creation(settings)
    return [
        Route("/v1/responses", creation.create, methods=["POST"]),
        Route("/v1/responses/compact", creation.compact, methods=["POST"]),
    ]


class _Creation:
    """Makes responses within the settings."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings

    async def create(self, client: AsyncClient, request: Request, body: bytes) -> Answer:
        form = read_form(read_object(body), ResponseForm)
        if form.background and not form.is_stored:
            raise InvalidRequest(
                "background is set and store is not: a response in the background is read from the store"
            )
        sent = await resolve(client, form, request, self._settings)
        echo = encode_echo(form)
        head = ResponseHead(sent, json.loads(echo), int(time.time()), tuple(sorted(form.model_extra or ())))
        if form.is_stored:
            sent.keep_request = True
            sent.metadata[KIND_KEY] = KIND
            sent.metadata[ECHO_KEY] = echo
        if form.stream:
            return send_response(client.stream(sent), ResponseEvents(head), sent.request_id)
        if form.background:
            async with aclosing(client.stream(sent)) as events:
                await anext(events)
            return JSONResponse(head.running(QUEUED))
        return JSONResponse(head.ended(completed(await client.execute(sent))))

    async def compact(self, client: AsyncClient, request: Request, body: bytes) -> Answer:
        asked = await resolve(client, read_form(read_object(body), ResponseForm), request, self._settings)
        compacting(asked)
        response = completed(await client.execute(asked))
        return JSONResponse(compaction_of(ResponseHead(asked, {}, int(time.time())), response))
