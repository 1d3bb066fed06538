"""Sends HTTP requests only to allowed hosts, and limits the size of responses.

Each name is resolved once, so the connection goes to the checked address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import httpx2

from pagantic_common.domain.addresses import address_of
from services.tools.core.allowlists import HostAllowlist
from services.tools.core.destinations import Address

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_ADDRESSES = 4
_CONNECT_TIMEOUT_S = 10.0
_SEND_TIMEOUT_S = 30.0


class RequestRefused(httpx2.TransportError):
    """The request would go to a destination that the deployment does not allow."""


class ResponseTooLarge(httpx2.StreamError):
    """The body exceeds the maximum size of a message."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The allowed hosts and the maximum size of a response body, each with advice for the error message."""

    hosts: HostAllowlist
    hosts_setting: str
    max_body_bytes: int
    body_advice: str


def guarded_client(
    transport: httpx2.AsyncBaseTransport, headers: Mapping[str, str], auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Return a client on a guarded transport. It has no read timeout, so callers must limit their waits."""
    return httpx2.AsyncClient(
        transport=transport,
        # A compressed body could expand to far more than its size.
        headers={**headers, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(connect=_CONNECT_TIMEOUT_S, write=_SEND_TIMEOUT_S, read=None, pool=None),
        auth=auth,
        trust_env=False,
    )


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Checks the host and address of each request, and counts the bytes of each response.

    Bodies whose content type starts with `uncounted_type` are not counted: their reader limits them.
    """

    uncounted_type: ClassVar[str | None] = None

    def __init__(self, bounds: Bounds, *, max_connections: int) -> None:
        limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
        self._inner = httpx2.AsyncHTTPTransport(limits=limits)
        self._bounds = bounds

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises RequestRefused, or ResponseTooLarge while the body is read."""
        response = await self.send(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise RequestRefused("the server compresses its answers, although it was asked not to", request=request)
        return self._bounded(response)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the response unchecked. Raises RequestRefused."""
        host, port = request.url.host, request.url.port or _DEFAULT_PORTS.get(request.url.scheme, 0)
        if not port or not self._bounds.hosts.has_host(host, port):
            advice = f"add it to {self._bounds.hosts_setting}"
            raise RequestRefused(f"host '{address_of(host, port)}' is not allowed: {advice}", request=request)
        *others, last = await self._find_addresses(request, host, port)
        for address in others:
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except (httpx2.ConnectError, httpx2.TimeoutException) as error:
                if not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise
        return await self._inner.handle_async_request(_pinned(request, last))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    async def _find_addresses(self, request: httpx2.Request, host: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        try:
            entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx2.ConnectError(f"host {host!r} is not found: {error.strerror}", request=request) from None
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in entries[:_MAX_ADDRESSES]]
        for address in addresses:
            if not self._bounds.hosts.has_address(host, port, address):
                advice = f"add it to {self._bounds.hosts_setting}"
                raise RequestRefused(
                    f"host {host!r} has the private address '{address}', which is not allowed: {advice}",
                    request=request,
                )
        return addresses

    def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        stream = response.stream
        content_type = str(response.headers.get("content-type", "")).lower()
        is_uncounted = self.uncounted_type is not None and content_type.startswith(self.uncounted_type)
        if is_uncounted or not isinstance(stream, httpx2.AsyncByteStream):
            return response
        bounded = _BoundedStream(stream, self._bounds)
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=bounded, extensions=response.extensions
        )


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, bounds: Bounds) -> None:
        self._inner = inner
        self._bounds = bounds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        limit_bytes = self._bounds.max_body_bytes
        left_bytes = limit_bytes
        async for part in self._inner:
            left_bytes -= len(part)
            if left_bytes < 0:
                raise ResponseTooLarge(f"it has more than {limit_bytes} bytes: {self._bounds.body_advice}")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def _pinned(request: httpx2.Request, address: Address) -> httpx2.Request:
    """Replace the host name of a request by an address. The certificate must still match the name."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=str(address)),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )
