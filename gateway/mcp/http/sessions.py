"""Sessions of the handshake era over the SDK's manager, which counts all of them but not those of one caller."""

from __future__ import annotations

import hashlib
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


def user_of(api_key: str) -> AuthenticatedUser | None:
    """Return who sent a key, by its hash, so that a session can belong to it; None without a key."""
    if not api_key:
        return None
    name = hashlib.sha256(api_key.encode()).hexdigest()
    return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[]))


class Sessions(StreamableHTTPSessionManager):
    """The open sessions. Each belongs to the key that opened it; without a key, to all that send none.

    Requests of an unknown session, and of another key, are answered alike: 404.
    """

    def __init__(self, server: Server[Any], *, max_sessions: int, idle_s: float, max_body_bytes: int) -> None:
        super().__init__(
            server, max_sessions=max_sessions, session_idle_timeout=idle_s, max_request_body_size=max_body_bytes
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
