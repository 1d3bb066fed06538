"""A small HTTP/1.1 client over asyncio streams: JSON in, JSON or server-sent events out.

The load generator shares its cores with what it measures, so it does no more than the peers need: one connection per
request, no redirects, no compression, no TLS.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.bench.load import BenchError

_EVENT = b"data: "
_DONE = b"[DONE]"
_READ_BYTES = 65_536
_HTTP_OK = 200


class HttpClient:
    """Talks to one server, given as http://host:port."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise BenchError(f"the peer must be given as http://host:port, not {url!r}")
        self._host = parts.hostname
        self._port = parts.port or 80

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body."""
        async with self._open("GET", path, b"") as (status, body):
            return status, b"".join([piece async for piece in body])

    async def post(self, path: str, payload: Any) -> Any:
        """Return the JSON of the reply; raises BenchError unless its status is 200."""
        async with self._open("POST", path, json.dumps(payload).encode()) as (status, body):
            text = b"".join([piece async for piece in body])
        _expect_ok(path, status, text)
        return json.loads(text)

    async def stream(self, path: str, payload: Any) -> AsyncIterator[Any]:
        """Yield the JSON of each server-sent event; raises BenchError unless the status is 200."""
        async with self._open("POST", path, json.dumps(payload).encode()) as (status, body):
            if status != _HTTP_OK:
                _expect_ok(path, status, b"".join([piece async for piece in body]))
            rest = b""
            async for piece in body:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    data = line[len(_EVENT) :].rstrip() if line.startswith(_EVENT) else b""
                    if data and data != _DONE:
                        yield json.loads(data)

    @asynccontextmanager
    async def _open(self, method: str, path: str, content: bytes) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        except OSError as error:
            raise BenchError(f"nothing answers at http://{self._host}:{self._port} ({error})") from None
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            status = int(lines[0].split(b" ", 2)[1])
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
            }
            is_chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
            yield status, _chunks(reader) if is_chunked else _rest(reader)
        finally:
            writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    try:
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    except (ValueError, asyncio.IncompleteReadError):
        raise BenchError("the peer closed the connection in the middle of a reply: see its log") from None


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(_READ_BYTES):
        yield piece


def _expect_ok(path: str, status: int, body: bytes) -> None:
    if status != _HTTP_OK:
        raise BenchError(f"POST {path} gave status {status}: {body[:500].decode(errors='replace')}")
