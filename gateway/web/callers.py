"""Finds the API key of a request, checks it with the orchestrator, and provides the client that sends the key."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from contextlib import suppress

from starlette.requests import Request

from pagantic_common.client import AsyncClient
from pagantic_common.client.credentials import has_key
from pagantic_common.domain.addresses import peer_of
from pagantic_common.domain.errors import ErrorCode, Overloaded, PermissionDenied, Unavailable
from pagantic_common.settings import Auth

KNOWN_S = 10.0
MAX_KNOWN = 4096
CHECK_S = 12.0  # Slightly longer than a client waits for an orchestrator that restarts.
_SCHEME = "bearer "


def api_key_of(request: Request | None) -> str:
    """Return the API key in `Authorization: Bearer` or else in `x-api-key`.

    Returns an empty string if there is no key or, as over stdio, no request.
    """
    if request is None:
        return ""
    header = request.headers.get("authorization", "")
    if not header.lower().startswith(_SCHEME):
        return request.headers.get("x-api-key", "").strip()
    return header[len(_SCHEME) :].strip()


def owner_of(request: Request | None, auth: Auth, *, is_key_checked: bool = True) -> str | None:
    """Return the name of a caller for its share of a server: the name of its key, or else of its peer.

    An unchecked key does not give a share, because a caller can make up any number of keys. Local callers are a single
    user, None, who does not share with others.
    """
    if request is None or auth is Auth.LOCAL:
        return None
    key = api_key_of(request) if is_key_checked else ""
    if key:
        return f"key {hash_of(key)}"
    return f"peer {peer_of(request.client.host) if request.client else ''}"


def is_key_lent(request: Request, auth: Auth) -> bool:
    """Return whether a local caller without a key uses the server's key, but without its admin scope."""
    return auth is Auth.LOCAL and has_key(os.environ) and not api_key_of(request)


def hash_of(key: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode()).hexdigest()


class Callers:
    """Clients of the orchestrator, with a client for each key, over a shared connection.

    Args:
    client: The client with the server's own key, used for callers without a key.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._known_until_s: OrderedDict[str, float] = OrderedDict()
        self._checks: dict[str, asyncio.Task[None]] = {}

    def client_for(self, request: Request | None) -> AsyncClient:
        """Return the client of a request's caller. Raises InvalidRequest if the key may not be forwarded."""
        key = api_key_of(request)
        if not key:
            return self._client
        return self._client.for_caller(key)

    async def refuse_unknown(self, request: Request) -> None:
        """Raise Unauthenticated if the orchestrator does not know a request's key.

        A key stays known for KNOWN_S. Concurrent requests share a check. Raises the error of a failed check.
        """
        key = api_key_of(request)
        if not key:
            return
        name = hash_of(key)
        if self._known_until_s.get(name, 0.0) > time.monotonic():
            return
        check = self._checks.get(name)
        if check is None:
            check = asyncio.create_task(self._check(self.client_for(request), name))
            self._checks[name] = check
            check.add_done_callback(lambda ended: self._end_check(name, ended))
        await asyncio.shield(check)

    def _end_check(self, name: str, ended: asyncio.Task[None]) -> None:
        del self._checks[name]
        if not ended.cancelled():
            ended.exception()  # Reading the exception avoids a warning if all callers have left.

    async def _check(self, client: AsyncClient, name: str) -> None:
        try:
            async with asyncio.timeout(CHECK_S):
                # The orchestrator knows the key, even if it denies the key the scope of this call.
                with suppress(PermissionDenied):
                    await client.list_prompt_templates()
        except TimeoutError:
            raise Unavailable("the orchestrator did not check the API key in time: try again") from None
        except Overloaded as error:
            if error.code is not ErrorCode.QUOTA_RATE:  # Calls are counted only for known keys.
                raise
        self._known_until_s[name] = time.monotonic() + KNOWN_S
        self._known_until_s.move_to_end(name)
        if len(self._known_until_s) > MAX_KNOWN:
            self._known_until_s.popitem(last=False)
