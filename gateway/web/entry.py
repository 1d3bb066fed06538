"""Admits requests: checks their headers, and counts the running requests.

The headers are checked against DNS rebinding: a web page must not reach a server of the same machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from starlette.requests import Request

from gateway.web.callers import api_key_of
from gateway.web.refusal import Refusal
from gateway.web.settings import DoorSettings
from pagantic_common.domain.addresses import address_of
from pagantic_common.settings import Auth

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Entry:
    """Checks and counts the requests that arrive at a server."""

    def __init__(self, settings: DoorSettings) -> None:
        self._settings = settings
        own_name = host_name_of(address_of(settings.host, settings.port))
        self._hosts = LOCAL_NAMES | {own_name} | {name.lower() for name in settings.allowed_hosts}
        self.request_count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count a running request inside the block. Raises Refusal if the limit is reached."""
        limit = self._settings.max_streams
        if self.request_count >= limit:
            raise Refusal(503, f"{self.request_count} requests run, at most {limit} may: try later")
        self.request_count += 1
        try:
            yield
        finally:
            self.request_count -= 1

    def check(self, request: Request) -> None:
        """Raise Refusal if the web page or caller of a request is not permitted."""
        variable = self._settings.variable
        if not is_known_host(request.headers.get("host", ""), self._hosts):
            raise Refusal(421, f"the header Host names another server: {variable('allowed_hosts')} lists more names")
        if not is_known_origin(request.headers.get("origin", ""), self._hosts, self._settings.allowed_origins):
            raise Refusal(403, f"pages of this origin may not call: {variable('allowed_origins')} lists more origins")

    def check_key(self, request: Request) -> None:
        """Raise Refusal if a request lacks the key that this door requires."""
        if self._settings.auth is Auth.KEYS and not api_key_of(request):
            raise Refusal(401, "send an API key as `Authorization: Bearer KEY` or `x-api-key: KEY`")


def host_name_of(authority: str) -> str:
    """Return the host name in a Host header, without its port."""
    if authority.startswith("["):
        return authority.partition("]")[0].lower() + "]"
    return authority.partition(":")[0].lower()


def is_known_host(authority: str, names: Collection[str]) -> bool:
    """Return whether a Host header names this server."""
    return host_name_of(authority) in names


def is_known_origin(origin: str, names: Collection[str], origins: Collection[str]) -> bool:
    """Return whether a page of this origin may call: its host is known and uses HTTP, or the origin is listed.

    Programs send no origin. A page without an origin, for example one opened from a file, sends `null`.
    """
    if not origin or origin in origins:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and host_name_of(parts.netloc) in names
