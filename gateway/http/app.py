"""The application behind the HTTP port: checks each request, calls its endpoint, and reports errors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from gateway.http.anthropic.answers import ANTHROPIC
from gateway.http.anthropic.paths import MESSAGES_PATH, VERSION_HEADER
from gateway.http.bodies import JsonBody, refuse_other_types
from gateway.http.failures import (
    OpenAIErrorObject,
    error_of,
    error_of_refusal,
    headers_of,
    headers_of_status,
    status_of,
)
from gateway.http.measuring import BROKEN, ROUTE, Streams
from gateway.http.native.probes import PROBES
from gateway.http.ollama.answers import OLLAMA
from gateway.http.operations import OPENAI, Access, Dialect, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import until_left
from gateway.web.answers import Answer
from gateway.web.bodies import RequestBody, Upload
from gateway.web.callers import Callers, is_key_lent
from gateway.web.cross_origin import CrossOrigin
from gateway.web.entry import Entry
from gateway.web.line_ends import escaping_line_ends
from gateway.web.refusal import Refusal
from pagantic_common.domain.errors import DeadlineExceeded, Overloaded, PaganticError

logger = logging.getLogger(__name__)


class HttpApp:
    """The ASGI application of the gateway.

    Args:
        callers: Provides the client of the orchestrator for each caller.
        settings: The permitted callers, and the limits.
        is_ready: Returns whether the orchestrator accepts requests.
        operations: All operations that are served.
    """

    def __init__(
        self,
        callers: Callers,
        settings: HttpSettings,
        is_ready: Callable[[], Awaitable[bool]],
        operations: Sequence[Operation],
    ) -> None:
        self._callers = callers
        self._settings = settings
        self._is_ready = is_ready
        self.entry = Entry(settings, callers.refuse_unknown, max_body_bytes=settings.max_body_bytes)
        self._cross_origin = CrossOrigin(settings)
        self.streams = Streams()
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            return
        is_probe = any(probe.path == scope["path"] for probe in PROBES)
        with self.streams.measuring(scope, send, is_traced=not is_probe) as measured:
            await self._serve(scope, receive, measured)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        for probe in PROBES:
            if scope["path"] == probe.path:
                scope[ROUTE] = probe.path
                await (await probe.route.endpoint(self._is_ready))(scope, receive, send)
                return
        if (opened := await self._cross_origin.open(scope, receive, send)) is None:
            return
        send = escaping_line_ends(opened)
        request = Request(scope)
        scope["request_id"] = uuid.uuid4().hex
        try:
            self.entry.check(request)
            operation = self._operation_of(scope)
            if operation.form is not None:
                refuse_other_types(request)
            self._check_scope(operation, request)
            async with self.entry.admitted(request, needs_key=operation.needs_key) as body:
                answer = Answer(body, opened, is_refusable=operation.method == "GET")
                if operation.takes_file:
                    settings = self._settings
                    file = Upload(receive, max_bytes=settings.max_file_bytes, read_s=settings.read_s)
                    await until_left(file.receive, self._answer(operation, request, file, answer))
                    return
                read = await self._read(operation, request, receive, body)
                await until_left(receive, self._answer(operation, request, read, answer))
        except ClientDisconnect:
            return
        except PaganticError as error:
            await _error_answer(request, error)(scope, receive, send)
        except Refusal as refusal:
            headers = {**headers_of_status(refusal.status), **refusal.headers}
            response = _error_response(request, error_of_refusal(refusal), refusal.status, headers)
            await response(scope, receive, send)

    def _check_scope(self, operation: Operation, request: Request) -> None:
        """Raise Refusal if the operation needs the admin scope of a key that belongs to the gateway itself.

        Any program on the machine may call a local gateway, whose key must not make every program an operator.
        """
        if operation.access is Access.ADMIN and is_key_lent(request, self._settings.auth):
            raise Refusal(403, "the gateway lends nobody the scope admin of its own key: send a key with this scope")

    async def _read(self, operation: Operation, request: Request, receive: Receive, body: RequestBody) -> bytes:
        """Return the body of a request, with its value if the operation has a form.

        The body of a route without a key is not read, because a slow body could hold a slot.
        """
        if not operation.needs_key:
            return b""
        read = await body.read(request, receive)
        if operation.form is None or not read:
            return read
        return await JsonBody.read(read, body)

    def _operation_of(self, scope: Scope) -> Operation:
        """Return the operation that answers a request. Raises Refusal if the path or the method does not exist."""
        allowed: set[str] = set()
        for operation in self._operations:
            match, child = operation.route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                scope[ROUTE] = operation.path
                return operation
            if match is Match.PARTIAL:
                allowed.add(operation.method)
        if allowed:
            methods = sorted(allowed)
            raise Refusal(405, f"the method must be {' or '.join(methods)}", {"allow": ", ".join(methods)})
        raise Refusal(404, f"there is no {scope['path'][:200]!r}: GET /openapi.json lists what there is")

    async def _answer(self, operation: Operation, request: Request, body: bytes | Upload, door_answer: Answer) -> None:
        """Send the answer of a handler or, if it fails, its error."""
        try:
            client = self._callers.client_for(request) if operation.needs_key else None
            async with door_answer.body.reading() if operation.is_read else nullcontext():
                response = await operation.handle(client, request, body)
            if isinstance(response, AsyncGenerator):
                with self.entry.streaming():
                    await _send_events(response, request, door_answer)
                return
        except PaganticError as error:
            response = _error_answer(request, error)
        except (Refusal, ClientDisconnect):
            raise  # The caller of this method sends the response.
        except Exception:
            logger.exception("request %s failed", request.scope["request_id"])
            described = error_of_refusal(Refusal(500, "the gateway failed: its log says why"))
            response = _error_response(request, described, 500, {})
        _name_request(response, request)
        await response(request.scope, request.receive, escaping_line_ends(door_answer.send))


def dialect_of(request: Request) -> Dialect:
    """Return the API dialect of a request, which the path and, for models, also a header determine."""
    path = request.scope["path"]
    if path.startswith("/api/"):
        return OLLAMA
    if path.startswith(MESSAGES_PATH) or (path.startswith("/v1/models") and VERSION_HEADER in request.headers):
        return ANTHROPIC
    return OPENAI


def _name_request(answer: Response, request: Request) -> None:
    """Add the id of a request to the headers of its answer."""
    for name in dialect_of(request).id_headers:
        answer.headers[name] = request.scope["request_id"]


def _error_answer(request: Request, error: PaganticError) -> JSONResponse:
    """Return the answer to a request that failed."""
    described = error_of(error, request.scope["request_id"])
    answer = _error_response(request, described, status_of(error), headers_of(error))
    _name_request(answer, request)
    return answer


def _error_response(
    request: Request, described: OpenAIErrorObject, status: int, headers: Mapping[str, str]
) -> JSONResponse:
    """Return the response for an error in the dialect of the request."""
    body = dialect_of(request).error_body(described, status, request.scope["request_id"])
    return JSONResponse(body, status, headers)


async def _send_events(events: AsyncGenerator[str, None], request: Request, door_answer: Answer) -> None:
    """Send the events of a stream.

    The status is sent with the first event, because an error before that event determines the status. A stream that
    breaks without an error event is cut off, so that clients do not mistake it for a complete stream.
    """
    scope, dialect, send = request.scope, dialect_of(request), escaping_line_ends(door_answer.send)
    async with aclosing(events):
        event = await anext(events, None)  # There are no events if the client already has the last event.
        door_answer.hold(len((event or "").encode()))
        headers = [
            (b"content-type", dialect.stream_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *((name.encode(), scope["request_id"].encode()) for name in dialect.id_headers),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while event is not None:
                event = await _send_event(event, events, send)
        except PaganticError as error:
            logger.warning("request %s: the stream broke: %s", scope["request_id"], error.code or error)
            scope[BROKEN] = error.with_traceback(None)  # The traceback would keep the events in memory.
            if not isinstance(error, DeadlineExceeded):  # After the time limit, a client may follow again.
                return
        except Exception as error:
            logger.exception("request %s: the stream broke", scope["request_id"])
            scope[BROKEN] = error.with_traceback(None)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(event: str, events: AsyncGenerator[str, None], send: Send) -> str | None:
    """Send an event and return the next event, which is the stream's error event if this event was refused."""
    try:
        await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
    except Overloaded as error:
        return await events.athrow(error)
    return await anext(events, None)
