"""Answers web pages of other origins as the Fetch standard (CORS) requires: preflights, and headers of each response.

Only the origins in ALLOWED_ORIGINS get these headers. Requests carry API keys, not cookies, so no response allows
credentials.
"""

from __future__ import annotations

import re

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.web.entry import is_known_host, names_of_server
from gateway.web.settings import DoorSettings

METHODS = "DELETE, GET, PATCH, POST"
MAX_AGE_S = 600
MAX_HEADER_CHARS = 4096
EXPOSED = (
    *("x-request-id", "request-id", "x-should-retry", "retry-after", "www-authenticate"),
    *("mcp-session-id", "mcp-protocol-version"),
)
_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")


class CrossOrigin:
    """Answers the pages of the listed origins.

    Args:
    settings: The listed origins, and the names of this server.
    methods: The methods that pages may use.
    """

    def __init__(self, settings: DoorSettings) -> None:
        self._origins = frozenset(settings.allowed_origins)
        self._hosts = names_of_server(settings)

    async def open(self, scope: Scope, receive: Receive, send: Send) -> Send | None:
        """Answer a preflight and return None, or return a `send` that adds the headers for the page of a request.

        A request from any other origin is unchanged. The door checks it, and refuses it if its origin is unknown.
        """
        if not self._origins:
            return send
        request = Request(scope)
        origin = request.headers.get("origin", "")
        is_listed = origin in self._origins and is_known_host(request.headers.get("host", ""), self._hosts)
        method = request.headers.get("access-control-request-method", "")
        if is_listed and request.method == "OPTIONS" and method:
            await _preflight(request, origin)(scope, receive, send)
            return None

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("origin")
                if is_listed:
                    headers["access-control-allow-origin"] = origin
                    headers["access-control-expose-headers"] = ", ".join(EXPOSED)
            await send(message)

        return send_with_headers


def _preflight(request: Request, origin: str) -> Response:
    """Return the permission to send a request with the headers that the browser names."""
    headers = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": METHODS,
        "access-control-max-age": str(MAX_AGE_S),
        "vary": "origin, access-control-request-headers",
    }
    wanted = request.headers.get("access-control-request-headers", "")
    if len(wanted) <= MAX_HEADER_CHARS and _NAMES.fullmatch(wanted):
        headers["access-control-allow-headers"] = wanted
    if request.headers.get("access-control-request-private-network") == "true":
        headers["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=headers)
