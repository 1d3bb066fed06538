"""Sends HTTP requests to allowed hosts only, and bounds what they answer.

Everything that the SDK sends goes through here: messages, redirects that it follows, and what OAuth looks up. Names are
looked up once, so that the address that was checked is the address that is called.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping

import httpx2

from services.tools.core.allowlists import Address, HostAllowlist

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_ADDRESSES = 4
_CONNECT_TIMEOUT_S = 10.0
_SEND_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 2.0


class RequestRefused(httpx2.TransportError):
    """The request would go where the deployment does not allow it."""


class ResponseTooLarge(httpx2.StreamError):
    """The body has more bytes than a message may have."""


def guarded_client(
    hosts: HostAllowlist,
    *,
    max_message_bytes: int,
    max_connections: int,
    headers: Mapping[str, str],
    auth: httpx2.Auth | None,
) -> httpx2.AsyncClient:
    """Return a client that calls allowed hosts; callers bound how long they wait for an answer."""
    limits = httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    return httpx2.AsyncClient(
        transport=GuardedTransport(httpx2.AsyncHTTPTransport(limits=limits), hosts, max_message_bytes),
        # A compressed body could become larger than its bytes tell.
        headers={**headers, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(connect=_CONNECT_TIMEOUT_S, write=_SEND_TIMEOUT_S, read=None, pool=None),
        auth=auth,
    )


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Checks each request's host and address, and counts the bytes of each response."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, hosts: HostAllowlist, max_message_bytes: int) -> None:
        self._inner = inner
        self._hosts = hosts
        self._max_message_bytes = max_message_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raises RequestRefused, and ResponseTooLarge while its body is read."""
        host, port = request.url.host, request.url.port or _DEFAULT_PORTS.get(request.url.scheme, 0)
        if not port or not self._hosts.has_host(host, port):
            raise RequestRefused(f"host '{host}:{port}' is not allowed: add it to MCP_HOSTS", request=request)
        addresses = await self._find_addresses(request, host, port)
        if request.method == "DELETE":
            return await self._end_session(request, addresses)
        return self._bounded(await self._send(request, addresses), request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request, addresses: list[Address]) -> httpx2.Response:
        *others, last = addresses
        for address in others:
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except (httpx2.ConnectError, httpx2.TimeoutException) as error:
                if not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise
        return await self._inner.handle_async_request(_pinned(request, last))

    async def _end_session(self, request: httpx2.Request, addresses: list[Address]) -> httpx2.Response:
        """Tell the server that its session ends, and wait for its status alone, and not for long."""
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                response = await self._send(request, addresses)
                await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("the end of the session is not confirmed", request=request) from None
        return httpx2.Response(response.status_code)

    async def _find_addresses(self, request: httpx2.Request, host: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx2.ConnectError(f"host {host!r} is not found: {error.strerror}", request=request) from None
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found[:_MAX_ADDRESSES]]
        for address in addresses:
            if not self._hosts.has_address(host, port, address):
                raise RequestRefused(
                    f"host {host!r} has the private address '{address}', which is not allowed: add it to MCP_HOSTS",
                    request=request,
                )
        return addresses

    def _bounded(self, response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestRefused("the server compresses its answers, although it was asked not to", request=request)
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream) or _is_event_stream(response):
            return response  # the SDK bounds each event
        bounded = _BoundedStream(stream, self._max_message_bytes)
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=bounded, extensions=response.extensions
        )


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left_bytes = self._max_bytes
        async for part in self._inner:
            left_bytes -= len(part)
            if left_bytes < 0:
                raise ResponseTooLarge(f"it has more than {self._max_bytes} bytes: raise MCP_MAX_MESSAGE_BYTES")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


def _pinned(request: httpx2.Request, address: Address) -> httpx2.Request:
    """Return the request for one address of its host; the certificate must still be the host's."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=str(address)),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )


def _is_event_stream(response: httpx2.Response) -> bool:
    return str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")
