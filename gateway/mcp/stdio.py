"""The stdio transport: a single client, one line of JSON per message, and logs only on stderr.

The SDK reads lines of any length and drops lines that are not messages. This module limits the length of a line, and
answers a line that is too long or not JSON with an error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError

from pagantic_common.domain.text.json_text import JsonTextError, parse_json

CHUNK_BYTES = 64 * 1024
Refuse = Callable[[str], Awaitable[None]]


class Lines:
    """The JSON lines from a file descriptor, each of at most `max_bytes`. Other lines are refused."""

    def __init__(self, descriptor: int, max_bytes: int) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self.refuse: Refuse | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield the valid lines, and refuse the others."""
        async for line in self._lines():
            problem = _objection_to(line, self._max_bytes)
            if not problem:
                yield line.decode()
            elif self.refuse is not None:
                await self.refuse(problem)

    async def _lines(self) -> AsyncIterator[bytes]:
        """Yield every line that is not blank. A line that is too long is cut slightly after its limit."""
        line = bytearray()
        async for chunk in _chunks_of(self._descriptor):
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                self._extend(line, part)
                if line.strip():
                    yield bytes(line)
                line.clear()
            self._extend(line, rest)
        if line.strip():
            yield bytes(line)

    def _extend(self, line: bytearray, part: bytes) -> None:
        line += part[: self._max_bytes + 1 - len(line)]


async def _chunks_of(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the available bytes from a reader thread, which cannot be interrupted but does not delay the exit."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(1)

    def read() -> None:
        chunk = b"-"
        while chunk:
            chunk = _read(descriptor)
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await chunks.get():
        yield chunk


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError:  # The client has disconnected.
        return b""


def _objection_to(line: bytes, max_bytes: int) -> str:
    """Return the reason that a line is refused, or an empty string if the line is valid."""
    if len(line) > max_bytes:
        return f"the message has more than {max_bytes} bytes: send less"
    try:
        parse_json(line.decode())
    except UnicodeDecodeError:
        return "the message is not UTF-8"
    except JsonTextError as error:
        return f"the message is not JSON: {error}"
    return ""


async def serve_stdio(server: Server[Any], *, max_bytes: int) -> None:
    """Serve the client at the standard streams until the client closes them."""
    lines = Lines(sys.stdin.fileno(), max_bytes)
    async with stdio_server(stdin=cast("anyio.AsyncFile[str]", lines)) as (read, write):
        lines.refuse = _refusing(write)
        await server.run(read, write, server.create_initialization_options())


def _refusing(write: WriteStream[SessionMessage]) -> Refuse:
    async def refuse(problem: str) -> None:
        error = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message=problem))
        await write.send(SessionMessage(error))

    return refuse
