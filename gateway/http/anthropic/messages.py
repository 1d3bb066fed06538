"""`POST /v1/messages`: runs the requests of Anthropic's clients."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.http.anthropic.answers import MessageHead, message_of
from gateway.http.anthropic.forms import MessagesForm
from gateway.http.anthropic.requests import system_request_of
from gateway.http.anthropic.stream import MessageEvents
from gateway.http.bodies import read_object, take_request_id
from gateway.http.openai.answers import completed
from gateway.http.openai.forms import read_form
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import encode_sent_events, send_answer
from pagantic_common.client import AsyncClient

PATH = "/v1/messages"
_PING = encode_sent_events([{"type": "ping"}])


def message_routes(settings: HttpSettings) -> list[Route]:
    """Return the path that makes messages."""

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        form = read_form(read_object(body), MessagesForm)
        sent = system_request_of(form, settings.alias_of(form.model), settings.call_s)
        take_request_id(sent, request)
        head = MessageHead(f"msg_{sent.request_id}", form.model, form.ignored)
        if form.stream:
            return send_answer(client.stream(sent), MessageEvents(head), sent.request_id, quiet=_PING)
        return JSONResponse(message_of(head, completed(await client.execute(sent))))

    return [Route(PATH, create, methods=["POST"])]
