"""Sessions of the handshake era: adds to the SDK's session manager the features that it lacks.

The manager counts all sessions, but not the sessions of each caller. If the first request of a session gets an error
or no answer, the manager keeps the session until its idle time has passed.
"""

from __future__ import annotations

import json
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from gateway.mcp.settings import McpSettings
from gateway.web.callers import hash_of
from pagantic_common.settings import Auth

MAX_HANDSHAKE_BYTES = 64 * 1024


def user_of(api_key: str) -> AuthenticatedUser | None:
    """Return a user named by the hash of the key, as the owner of a session, or None without a key."""
    if not api_key:
        return None
    return AuthenticatedUser(AccessToken(token="", client_id=hash_of(api_key), scopes=[]))


class Sessions(StreamableHTTPSessionManager):
    """The open sessions. A session belongs to the key that opened it, or to all callers without a key.

    A request gets the same answer, 404, for an unknown session and for a session of another key. Local callers are one
    user, who may open all sessions.
    """

    def __init__(self, server: Server[Any], settings: McpSettings, *, idle_s: float) -> None:
        self._settings = settings
        self._is_shared = settings.auth is not Auth.LOCAL
        super().__init__(
            server,
            max_sessions=settings.max_sessions,
            session_idle_timeout=idle_s,
            max_request_body_size=settings.max_message_bytes,
        )

    @property
    def count(self) -> int:
        """The number of open sessions."""
        return len(self._server_instances)

    def count_of(self, user: AuthenticatedUser | None) -> int:
        """Return the number of a caller's open sessions."""
        if user is None:
            return self.count - len(self._session_owners)
        return sum(owner["client_id"] == user.access_token.client_id for owner in self._session_owners.values())

    def has_room_for(self, user: AuthenticatedUser | None) -> bool:
        """Return whether a caller may open another session: it must hold fewer than are free, as in `Shares`."""
        free = self._settings.max_sessions - self.count
        held = self.count_of(user) if self._is_shared else 0
        return held < free if held else free > 0

    async def open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request that opens a session, and discard the session if the client received no result."""
        handshake = Handshake(send)
        try:
            await self.asgi_app(scope, receive, handshake.send)
        finally:
            transport = self._server_instances.get(handshake.session_id)
            if transport is not None and not handshake.has_result:
                await self._discard_session(handshake.session_id, transport)


class Handshake:
    """Forwards the response to a request that opens a session, and reads its result."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._body = b""
        self.session_id = ""

    async def send(self, message: Message) -> None:
        """Forward a part of the response."""
        await self._send(message)
        if message["type"] == "http.response.start":
            self.session_id = Headers(raw=message["headers"]).get(MCP_SESSION_ID_HEADER, "")
        elif len(self._body) < MAX_HANDSHAKE_BYTES:
            self._body += message.get("body", b"")

    @property
    def has_result(self) -> bool:
        """Whether the server accepted the handshake."""
        lines = self._body.splitlines()
        return any(_is_result(line.removeprefix(b"data:")) for line in lines if line.startswith((b"data:", b"{")))


def _is_result(text: bytes) -> bool:
    try:
        message = json.loads(text)
    except ValueError:
        return False
    return isinstance(message, dict) and "result" in message
