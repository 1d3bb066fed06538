"""Fetches pages from allowed hosts over HTTP.

Each hop is checked: first its host against the allowlist, then every address of the host. The connection
goes to a checked address, so the name cannot change its address between the check and the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx

from pagantic_common.domain.messages import ToolDefinition, ToolFailed, ToolSafety
from pagantic_common.domain.text.json_text import dump_json
from services.tools.adapters.builtin.parameters import object_schema
from services.tools.core.builtin.page_text import BodyReader, check_text_type, cut_to_json_bytes
from services.tools.core.destinations import DEFAULT_PORTS, Address, Allowlist, Destination, read_address
from services.tools.ports import Report

MAX_URL_CHARS = 2048
MAX_REDIRECTS = 5
MAX_ADDRESSES = 4  # no further addresses of a host are tried
TIMEOUT_S = 20.0
_OTHER_FIELDS_BYTES = 2 * MAX_URL_CHARS + 512  # maximum size of the result without its text

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


class HttpFetchTool:
    """Fetches a text page with GET.

    The safety class is EXTERNAL, because the host is outside the deployment and the URL itself can carry data to it.

    Args:
        allowlist: The hosts to which requests may go.
        max_bytes: The maximum size of a page after decompression. The rest is dropped.
        max_result_bytes: The maximum size of the result. Longer text is cut.
        resolve: Returns the addresses of a host name, or raises OSError.
    """

    unavailable_reason = ""
    is_remote = True
    places = None

    def __init__(
        self, allowlist: Allowlist, max_bytes: int, max_result_bytes: int, resolve: Resolve | None = None
    ) -> None:
        self._allowlist = allowlist
        self._max_bytes = max_bytes
        self._max_result_bytes = max_result_bytes
        self._resolve = resolve or _resolve_by_system
        self._tls = httpx.create_ssl_context()
        hosts = ", ".join(map(str, allowlist.hosts[:20]))
        self.definition = ToolDefinition(
            name="http_fetch",
            description=f"Fetches a page of text by HTTP GET. Permitted hosts: {hosts}.",
            parameters_json=object_schema(
                ("url",),
                url={"type": "string", "description": "the URL", "minLength": 1, "maxLength": MAX_URL_CHARS},
            ),
            safety=ToolSafety.EXTERNAL,
            idempotent=True,
            timeout_s=TIMEOUT_S,
        )

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the status, final URL, content type and text as a JSON object. Raises ToolFailed."""
        url = _read_url(arguments["url"])
        for _ in range(MAX_REDIRECTS + 1):
            async with AsyncExitStack() as stack:
                response = await self._get(url, stack)
                if not response.has_redirect_location:
                    return await self._read_page(url, response)
                url = _read_url(str(_target_of(url, response.headers["location"])))
        raise ToolFailed(f"the page redirects more than {MAX_REDIRECTS} times: try another URL")

    async def _get(self, url: httpx.URL, stack: AsyncExitStack) -> httpx.Response:
        """Return the response of the first address that accepts the connection. Its body is not read yet."""
        destination = _destination_of(url)
        self._allowlist.check_host(destination)
        addresses = await self._find_addresses(destination)
        # Each request uses a new client, because pooled connections would be keyed by address, not by host.
        client = httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=TIMEOUT_S)
        await stack.enter_async_context(client)
        failure: httpx.ConnectError | httpx.ConnectTimeout | None = None
        for address in addresses:
            request = _request_to(client, url, address)
            try:
                response = await client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
                continue
            except httpx.HTTPError as error:
                raise _broken(url, error) from None
            stack.push_async_callback(response.aclose)
            return response
        raise ToolFailed(f"host {url.host[:100]!r} cannot be reached: {failure}", is_final=False)

    async def _find_addresses(self, destination: Destination) -> Sequence[Address]:
        """Return the addresses of a host. Raises ToolFailed unless all of them are permitted."""
        literal = read_address(destination.host)
        if literal is not None:
            addresses: Sequence[Address] = [literal]
        else:
            try:
                addresses = await self._resolve(destination.host, destination.port)
            except (OSError, UnicodeError):
                raise ToolFailed(f"host {destination.host[:100]!r} has no address", is_final=False) from None
        self._allowlist.check_addresses(destination, addresses)
        return addresses[:MAX_ADDRESSES]

    async def _read_page(self, url: httpx.URL, response: httpx.Response) -> str:
        media_type, encoding = check_text_type(response.headers)
        body = BodyReader(response.headers.get("content-encoding", ""), self._max_bytes)
        try:
            async for chunk in response.aiter_raw():
                body.add(chunk)
                if body.is_truncated:
                    break
        except httpx.HTTPError as error:
            raise _broken(url, error) from None
        text = body.text(encoding)
        kept = cut_to_json_bytes(text, self._max_result_bytes - _OTHER_FIELDS_BYTES)
        return dump_json(
            {
                "status": response.status_code,
                "url": str(url),
                "content_type": media_type,
                "text": kept,
                "is_truncated": body.is_truncated or len(kept) < len(text),
            }
        )


def _read_url(text: str) -> httpx.URL:
    """Return a URL without its fragment. Raises ToolFailed if the URL is not HTTP or contains a password."""
    try:
        url = httpx.URL(text).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError):
        raise ToolFailed("the URL is not valid: write it as https://host/path") from None
    if url.scheme not in DEFAULT_PORTS or not url.host:
        raise ToolFailed("the URL must begin with https:// or http:// and a host")
    if url.userinfo:
        raise ToolFailed("the URL must not hold a user name or password: leave them out")
    if len(str(url)) > MAX_URL_CHARS:
        raise ToolFailed(f"the URL has {len(str(url))} characters, at most {MAX_URL_CHARS} are allowed")
    return url


def _target_of(url: httpx.URL, location: str) -> httpx.URL:
    try:
        return url.join(location)
    except (httpx.InvalidURL, ValueError):
        raise ToolFailed("the page redirects to a URL that is not valid: try another URL") from None


def _destination_of(url: httpx.URL) -> Destination:
    host = url.raw_host.decode("ascii").lower().strip("[]").removesuffix(".")
    return Destination(url.scheme, host, url.port or DEFAULT_PORTS[url.scheme])


def _request_to(client: httpx.AsyncClient, url: httpx.URL, address: Address) -> httpx.Request:
    """Return the request to an address. The Host header, TLS and the certificate check use the host's name."""
    name = url.raw_host.decode("ascii")
    headers = {
        "host": url.netloc.decode("ascii"),
        "accept": "text/*, application/json, application/xml;q=0.9",
        "accept-encoding": "gzip",
        "user-agent": "pagantic",
        "connection": "close",
    }
    return client.build_request(
        "GET", url.copy_with(host=str(address)), headers=headers, extensions={"sni_hostname": name.strip("[]")}
    )


def _broken(url: httpx.URL, error: httpx.HTTPError) -> ToolFailed:
    return ToolFailed(f"host {url.host[:100]!r} did not answer properly ({type(error).__name__})", is_final=False)


async def _resolve_by_system(name: str, port: int) -> Sequence[Address]:
    entries = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(entry[4][0]) for entry in entries]
