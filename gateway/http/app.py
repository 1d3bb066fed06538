"""The application behind the HTTP port: checks each request, gives it to what answers it, and says what went wrong."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway.http.failures import error_of, error_of_refusal, headers_of, headers_of_status, status_of
from gateway.http.native import plain, read_request, stream_events
from gateway.http.openai.chat import Chat, find_model, list_models
from gateway.http.openai.decision_forms import DecisionForm
from gateway.http.openai.decisions import decision_of, decision_request_of
from gateway.http.openai.forms import read_form
from gateway.http.running import until_left
from gateway.http.settings import HttpSettings
from gateway.web.bodies import read_body
from gateway.web.callers import Callers
from gateway.web.entry import Entry
from gateway.web.refusal import Refusal
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient
from pagantic_common.client.responses import raise_for_error
from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

REQUEST_ID = "x-request-id"
logger = logging.getLogger(__name__)
Answer = Response | AsyncGenerator[str, None]


class HttpApp:
    """An ASGI application.

    Args:
        callers: Give the client of the orchestrator for each caller.
        settings: Say who may call, and the limits.
        is_ready: Tells whether the orchestrator takes requests.
    """

    def __init__(self, callers: Callers, settings: HttpSettings, is_ready: Callable[[], Awaitable[bool]]) -> None:
        self._callers = callers
        self._settings = settings
        self._is_ready = is_ready
        self.entry = Entry(settings)
        post, get, delete = ["POST"], ["GET"], ["DELETE"]
        self._routes = [
            Route("/v1/chat/completions", self._chat, methods=post),
            Route("/v1/decisions", self._decide, methods=post),
            Route("/v1/models", self._models, methods=get),
            Route("/v1/models/{name:path}", self._model, methods=get),
            Route("/v1/executions", self._execute, methods=post),
            Route("/v1/executions/{request_id}", self._execution, methods=get),
            Route("/v1/executions/{request_id}", self._cancel, methods=delete),
            Route("/v1/executions/{request_id}/timeline", self._timeline, methods=get),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        if scope["path"] in ("/healthz", "/readyz"):
            await (await self._probe(scope["path"]))(scope, receive, send)
            return
        request = Request(scope)
        scope["request_id"] = uuid.uuid4().hex
        try:
            with self.entry.counting():
                self.entry.check(request)
                self.entry.check_key(request)
                handle = self._handler_of(scope)
                settings = self._settings
                body = await read_body(receive, max_bytes=settings.max_body_bytes, read_s=settings.read_s)
                await until_left(receive, self._answer(handle, request, body, send))
        except ClientDisconnect:
            return
        except Refusal as refusal:
            headers = headers_of_status(refusal.status)
            response = JSONResponse({"error": error_of_refusal(refusal)}, refusal.status, headers)
            await response(scope, receive, send)

    async def _probe(self, path: str) -> Response:
        if path == "/readyz" and not await self._is_ready():
            return PlainTextResponse("the orchestrator takes no requests now\n", 503)
        return PlainTextResponse("ok\n")

    def _handler_of(self, scope: Scope) -> Callable[..., Awaitable[Answer]]:
        """Return what answers a request; raises Refusal for a path or method that there is not."""
        allowed: set[str] = set()
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                handler: Callable[..., Awaitable[Answer]] = route.endpoint
                return handler
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if allowed:
            raise Refusal(405, f"the method must be {' or '.join(sorted(allowed - {'HEAD'}))}")
        raise Refusal(404, f"there is no {scope['path'][:200]!r}: the document of this API lists what there is")

    async def _answer(
        self, handle: Callable[..., Awaitable[Answer]], request: Request, body: bytes, send: Send
    ) -> None:
        """Send the answer of a handler, or its error."""
        try:
            client = self._callers.client_for(request)
            answer = await handle(client, request, body)
            if isinstance(answer, AsyncGenerator):
                await _send_events(answer, request.scope, send)
                return
        except PaganticError as error:
            answer = JSONResponse(
                {"error": error_of(error, request.scope["request_id"])}, status_of(error), headers_of(error)
            )
        except Exception:
            logger.exception("request %s failed", request.scope["request_id"])
            answer = JSONResponse(
                {"error": error_of_refusal(Refusal(500, "the gateway failed: its log says why"))}, 500
            )
        answer.headers[REQUEST_ID] = request.scope["request_id"]
        await answer(request.scope, request.receive, send)

    async def _chat(self, client: AsyncClient, request: Request, body: bytes) -> Answer:
        chat = Chat(_json(body), self._settings, request.scope["request_id"])
        request.scope["request_id"] = chat.request_id
        if chat.streams:
            return chat.stream(client)
        return JSONResponse(await chat.complete(client))

    async def _decide(self, client: AsyncClient, request: Request, body: bytes) -> Answer:
        form = read_form(_json(body), DecisionForm)
        asked = decision_request_of(form, self._settings.alias_of(form.model), self._settings.call_s)
        asked.request_id = asked.request_id or request.scope["request_id"]
        request.scope["request_id"] = asked.request_id
        return JSONResponse(decision_of(form, raise_for_error(await client.execute(asked))))

    async def _models(self, client: AsyncClient, _request: Request, _body: bytes) -> Answer:
        return JSONResponse(await list_models(client, self._settings))

    async def _model(self, client: AsyncClient, request: Request, _body: bytes) -> Answer:
        return JSONResponse(await find_model(client, self._settings, request.path_params["name"]))

    async def _execute(self, client: AsyncClient, request: Request, body: bytes) -> Answer:
        asked = read_request(_json(body), request.scope["request_id"], self._settings.call_s)
        request.scope["request_id"] = asked.request_id
        if "text/event-stream" in request.headers.get("accept", ""):
            return stream_events(client, asked)
        return JSONResponse(plain(await client.execute(asked)))

    async def _execution(self, client: AsyncClient, request: Request, _body: bytes) -> Answer:
        return JSONResponse(plain(await client.get_execution(request.path_params["request_id"])))

    async def _timeline(self, client: AsyncClient, request: Request, _body: bytes) -> Answer:
        events = await client.timeline(request.path_params["request_id"])
        return JSONResponse({"events": [plain(event) for event in events]})

    async def _cancel(self, client: AsyncClient, request: Request, _body: bytes) -> Answer:
        state = await client.cancel(request.path_params["request_id"])
        return JSONResponse({"state": execution_pb2.LifecycleState.Name(state)})


async def _send_events(events: AsyncGenerator[str, None], scope: Scope, send: Send) -> None:
    """Send server-sent events. The first is awaited before the status is sent, which its error may still decide."""
    async with aclosing(events):
        first = await anext(events)
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (REQUEST_ID.encode(), scope["request_id"].encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first.encode(), "more_body": True})
        try:
            async for event in events:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        except PaganticError as error:
            logger.warning("request %s: the stream broke: %s", scope["request_id"], error.code)
        except Exception:
            logger.exception("request %s: the stream broke", scope["request_id"])
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _json(body: bytes) -> Any:
    """Return the value of a body; raises InvalidRequest for one that is no JSON object."""
    try:
        value = parse_json(body.decode(), is_rewritable=True)
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not UTF-8") from None
    except JsonTextError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body is no JSON object")
    return value
