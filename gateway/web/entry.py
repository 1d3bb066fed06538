"""Admits requests to a server, in an order that makes refused requests cheap.

1. `check`: the headers Host and Origin. They guard against DNS rebinding: a web page must not reach a server of the
   same machine.
2. `admitted`: the caller's key, then a place among the running requests. Each caller has its share of the places.
3. `RequestBody.read`: the size of the body, then its bytes, which count in the memory of all bodies until the request
   ends. Each caller has its share of this memory.
4. `RequestBody.work_on`: parsing and other work on a large body, in a thread outside the event loop.
5. `RequestBody.reading`: a small number of concurrent reads of stored content.
6. `Answer`: the bytes of large answers, which count in the memory of the bodies.

Before these steps, gateway.web.connections limits the number of connections and the duration of silence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

from starlette.requests import Request

from gateway.web.bodies import Bodies, RequestBody
from gateway.web.callers import api_key_of, owner_of
from gateway.web.refusal import Refusal, overloaded
from gateway.web.settings import DoorSettings
from pagantic_common.domain.addresses import address_of
from pagantic_common.domain.calls.shares import Shares
from pagantic_common.settings import Auth

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Streams stay open for a long time. This fraction of the places remains for other requests.
QUICK_PART = 1 / 8


class Entry:
    """Checks and counts the requests that arrive at a server.

    Args:
        settings: The permitted callers, and the limits.
        refuse_unknown: Raises the error of a request with an unknown key. None admits every key.
        max_body_bytes: Largest body of a request.
    """

    def __init__(
        self,
        settings: DoorSettings,
        refuse_unknown: Callable[[Request], Awaitable[None]] | None,
        *,
        max_body_bytes: int,
    ) -> None:
        self._settings = settings
        self._refuse_unknown = refuse_unknown
        self._hosts = names_of_server(settings)
        self._places = Shares(settings.max_streams)
        self._max_open_streams = settings.max_streams - int(settings.max_streams * QUICK_PART)
        self._open_streams = 0
        self.bodies = Bodies(settings, max_body_bytes)

    @property
    def request_count(self) -> int:
        """The number of running requests."""
        return self._settings.max_streams - self._places.free

    def check(self, request: Request) -> None:
        """Raise Refusal if a request comes from a web page that is not permitted, or if its Host is another server."""
        variable = self._settings.variable
        origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
        if not is_known_host(host, self._hosts):
            raise Refusal(421, f"the header Host names another server: {variable('allowed_hosts')} lists more names")
        if not is_known_origin(origin, host, self._settings.allowed_origins):
            raise Refusal(403, f"pages of this origin may not call: {variable('allowed_origins')} lists more origins")

    @asynccontextmanager
    async def admitted(self, request: Request, *, needs_key: bool = True) -> AsyncIterator[RequestBody]:
        """Count a running request inside the block, and yield its body, which is not read yet.

        Raises Refusal if the caller lacks a key or has used its share of the places, or the error of an unknown key.
        """
        if needs_key:
            await self._check_key(request)
        owner = owner_of(request, self._settings.auth, is_key_checked=needs_key)
        if not self._places.begin(owner):
            raise overloaded(
                f"{self.request_count} requests run, {self._places.held_by(owner)} of them for this caller; at most "
                f"{self._settings.max_streams} may, and each caller has its share of them: try later"
            )
        body = RequestBody(self.bodies, owner)
        try:
            yield body
        finally:
            body.release()
            self._places.end(owner)

    async def _check_key(self, request: Request) -> None:
        has_key = bool(api_key_of(request))
        if self._settings.auth is Auth.KEYS and not has_key:
            raise Refusal(401, "send an API key as `Authorization: Bearer KEY` or `x-api-key: KEY`")
        if has_key and self._refuse_unknown is not None:
            await self._refuse_unknown(request)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count an open stream inside the block. Raises Refusal if streams would take the places of other requests."""
        if self._open_streams >= self._max_open_streams:
            raise overloaded(f"{self._open_streams} streams are open, which is the most: try later")
        self._open_streams += 1
        try:
            yield
        finally:
            self._open_streams -= 1


def names_of_server(settings: DoorSettings) -> frozenset[str]:
    """Return the host names by which clients may call a server, in lower case."""
    own_name = host_name_of(address_of(settings.host, settings.port))
    return LOCAL_NAMES | {own_name} | {name.lower() for name in settings.allowed_hosts}


def host_name_of(authority: str) -> str:
    """Return the host name in a Host header, without its port."""
    if authority.startswith("["):
        return authority.partition("]")[0].lower() + "]"
    return authority.partition(":")[0].lower()


def is_known_host(authority: str, names: Collection[str]) -> bool:
    """Return whether a Host header names this server."""
    return host_name_of(authority) in names


def is_known_origin(origin: str, host: str, origins: Collection[str]) -> bool:
    """Return whether a page of this origin may call: the page comes from this host and port over HTTP, or is listed.

    Another port is another server, whose pages may not call. Programs send no origin. A page without an origin, for
    example a page opened from a file, sends `null`.
    """
    if not origin or origin in origins:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
