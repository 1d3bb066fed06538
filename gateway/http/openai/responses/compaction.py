"""`POST /v1/responses/compact`: has a conversation summarized."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.bodies import read_object
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import read_form, require_model
from gateway.http.openai.responses.forms import ResponseForm
from gateway.http.openai.responses.objects import ResponseHead
from gateway.http.openai.responses.resolving import resolve
from gateway.http.openai.responses.summaries import ask_for_summary, compaction_of
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic_common.client import AsyncClient


def compaction_routes(settings: HttpSettings) -> list[Route]:
    """Return the path that compacts."""

    async def compact(client: AsyncClient, request: Request, body: bytes) -> Answer:
        value = read_object(body)
        require_model(value)
        asked = await resolve(client, read_form(value, ResponseForm), request, settings)
        ask_for_summary(asked)
        response = completed(await client.execute(asked))
        return JSONResponse(compaction_of(ResponseHead(asked, {}), int(time.time()), response))

    return [Route("/v1/responses/compact", compact, methods=["POST"])]
