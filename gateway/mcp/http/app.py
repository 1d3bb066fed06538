"""The application behind the HTTP port: checks and limits each request, and passes it to the protocol.

A client of 2026-07-28 sends self-contained requests. A client of the handshake era opens a session with `initialize`,
and its requests without a session are also served as self-contained. All of these requests share the limits.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.mcp.http.answers import Refusal, not_json
from gateway.mcp.http.sessions import Sessions, user_of
from gateway.mcp.settings import McpSettings
from gateway.mcp.visits import Visit
from gateway.web import refusal as web
from gateway.web.answers import Answer
from gateway.web.bodies import check_values
from gateway.web.callers import Callers, api_key_of
from gateway.web.cross_origin import CrossOrigin
from gateway.web.entry import Entry
from gateway.web.line_ends import escaping_line_ends
from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

PATH = "/mcp"
# A large answer to one of these methods may be refused, because a client may call the method again.
READS = frozenset(
    {"tools/list", "resources/list", "resources/templates/list", "resources/read", "prompts/list", "prompts/get"}
)
GRACE_S = 5.0
SESSION_IDLE_S = 900.0  # Clients rarely end their sessions. After a 404, a returning client opens a new one.
logger = logging.getLogger(__name__)


class McpApp:
    """The ASGI application. Requests are served only inside `running`.

    Args:
        server: Answers the messages.
        settings: The permitted callers, and the limits.
        callers: Checks the keys of callers. None lets every key in.
        session_idle_s: Time after which a session without a request ends.
    """

    def __init__(
        self,
        server: Server[Any],
        settings: McpSettings,
        callers: Callers | None = None,
        *,
        session_idle_s: float = SESSION_IDLE_S,
    ) -> None:
        self._settings = settings
        self.sessions = Sessions(server, settings, idle_s=session_idle_s)
        self._alone = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=settings.max_message_bytes
        )
        refuse_unknown = callers.refuse_unknown if callers is not None else None
        self.entry = Entry(settings, refuse_unknown, max_body_bytes=settings.max_message_bytes)
        self._cross_origin = CrossOrigin(settings)
        self._requests_of_sessions: set[tuple[str, str]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve requests while the block runs, and end all sessions afterwards."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.sessions.run())
            await stack.enter_async_context(self._alone.run())
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or (opened := await self._cross_origin.open(scope, receive, send)) is None:
            return
        response = Response(opened)
        try:
            request = Request(scope)
            self._check(request)
            async with self.entry.admitted(request) as body:
                answer = Answer(body, opened)
                response = Response(answer.send)
                await self._serve(request, receive, response, answer)
        except ClientDisconnect:
            return
        except Exception as error:
            refusal = _refusal_in(error)
            if refusal is None:
                logger.exception("a request failed")
                refusal = Refusal(500, "the server failed: its log says why")
            await response.end(refusal, scope, receive)

    async def _serve(self, request: Request, receive: Receive, response: Response, answer: Answer) -> None:
        scope, body = request.scope, answer.body
        user = user_of(api_key_of(request))
        if user is not None:
            scope["user"] = user
        envelope = Envelope("", "")
        if request.method == "POST":
            read = await body.read(request, receive)
            envelope = await body.work_on(read, Envelope.read, read)
            answer.is_refusable = envelope.method in READS
            receive = replaying(read, receive)
        session_id = request.headers.get(MCP_SESSION_ID_HEADER, "")
        app = self._app_for(request, envelope, session_id)
        if app == self.sessions.open and not self.sessions.has_room_for(user):
            raise Refusal(
                503, f"this caller has its share of the {self._settings.max_sessions} sessions: end one with DELETE"
            )
        visit = Visit()
        visit.enter(scope)
        with self._once_in_session(session_id, envelope), self._streaming(request):
            try:
                with anyio.move_on_after(self._settings.call_s + GRACE_S) as limit:
                    await app(scope, receive, escaping_line_ends(response.send))
            finally:
                visit.leave()
        if limit.cancelled_caught:
            await response.end(Refusal(504, "the time for the request is up: send it again"), scope, receive)

    def _check(self, request: Request) -> None:
        """Raise Refusal if a request is not permitted."""
        if request.url.path.rstrip("/") != PATH:
            raise Refusal(404, f"there is only {PATH}")
        self.entry.check(request)
        if request.method not in ("GET", "POST", "DELETE"):
            raise Refusal(405, "the method must be GET, POST or DELETE")

    def _app_for(self, request: Request, envelope: Envelope, session_id: str) -> ASGIApp:
        """Return the application that serves a request. Raises Refusal if the request cannot be served."""
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return self._alone.asgi_app
        if session_id:
            return self.sessions.asgi_app
        if request.method != "POST":
            raise Refusal(400, f"the header {MCP_SESSION_ID_HEADER} is missing: open a session with initialize")
        if envelope.method != "initialize":
            return self._alone.asgi_app
        return self.sessions.open

    def _streaming(self, request: Request) -> AbstractContextManager[None]:
        """Return the context for a request, which counts as a stream if the client waits for messages of the server."""
        return self.entry.streaming() if request.method == "GET" else nullcontext()

    @contextmanager
    def _once_in_session(self, session_id: str, envelope: Envelope) -> Iterator[None]:
        """Refuse a second running request with the same id, because the first would otherwise never get its answer."""
        if not session_id or not envelope.method or not envelope.request_id:
            yield
            return
        key = (session_id, envelope.request_id)
        if key in self._requests_of_sessions:
            raise Refusal(400, f"request {envelope.request_id[:64]!r} runs already: take another id")
        self._requests_of_sessions.add(key)
        try:
            yield
        finally:
            self._requests_of_sessions.discard(key)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of a message that determine its routing: the method and the request id. Missing parts are empty."""

    method: str
    request_id: str

    @classmethod
    def read(cls, body: bytes) -> Envelope:
        """Read the envelope of a body, which is empty unless the JSON is an object.

        Raises Refusal for invalid JSON, or InvalidRequest for too many values.
        """
        check_values(body)
        try:
            message = parse_json(body.decode())
        except UnicodeDecodeError:
            raise not_json("it is not UTF-8") from None
        except JsonTextError as error:
            raise not_json(str(error)) from None
        if not isinstance(message, dict):
            return cls("", "")
        return cls(_text_of(message.get("method")), _text_of(message.get("id")))


def _text_of(value: Any) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    return ""


def _refusal_in(error: Exception) -> Refusal | None:
    """Return the refusal for an error, which the protocol's task groups may wrap, or None for an internal error."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return Refusal.of(error) if isinstance(error, web.Refusal | PaganticError) else None


def replaying(body: bytes, receive: Receive) -> Receive:
    """Return a message source that first returns the body again, and then later messages."""
    is_sent = False

    async def replay() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class Response:
    """Forwards a response and records its progress."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False
        self._has_ended = False

    async def send(self, message: Message) -> None:
        """Forward a part of the response."""
        await self._send(message)
        if message["type"] == "http.response.start":
            self._has_begun = True
        elif message["type"] == "http.response.body":
            self._has_ended = not message.get("more_body", False)

    async def end(self, refusal: Refusal, scope: Scope, receive: Receive) -> None:
        """End a response that cannot continue. If no part of it was sent, send the refusal.

        A stream that answers a POST lacks its result. The method does not end it, so its connection is cut.
        """
        if not self._has_begun:
            await refusal.response()(scope, receive, escaping_line_ends(self.send))
        elif not self._has_ended and scope["method"] == "GET":
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
