"""Reads the body of a request within its limits: as a whole, or a file part by part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from gateway.web.refusal import Refusal


async def read_body(receive: Receive, *, max_bytes: int, read_s: float) -> bytes:
    """Return the body.

    Raises Refusal if the body is too large or too slow, or ClientDisconnect if the client disconnected.
    """
    body = bytearray()
    with anyio.move_on_after(read_s):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > max_bytes:
                raise Refusal(413, f"the body has more than {max_bytes} bytes: send less")
            if not message.get("more_body", False):
                return bytes(body)
    raise Refusal(408, f"the body did not arrive within {read_s:g} s: send it again")


class Upload:
    """A file that a client uploads. It is read only as fast as it is consumed, and never held as a whole.

    Args:
    receive: Returns the messages of the request.
    max_bytes: Maximum size of the file.
    read_s: Longest time in seconds that the client may be silent.
    """

    def __init__(self, receive: Receive, *, max_bytes: int, read_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._read_s = read_s
        self._is_read = asyncio.Event()
        self._failure: Refusal | ClientDisconnect | None = None

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the bytes.

        Raises Refusal if the file is too large or too slow, or ClientDisconnect if the client disconnected.
        """
        size_bytes = 0
        while not self._is_read.is_set():
            try:
                part = await self._next()
                size_bytes += len(part)
                self._check_size(size_bytes)
            except (Refusal, ClientDisconnect) as failure:
                self._failure = failure
                raise
            yield part

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            raise Refusal(413, f"the file has more than {self._max_bytes} bytes: send a smaller one")

    async def receive(self) -> Message:
        """Return the next message after the file, waiting until the file is read."""
        await self._is_read.wait()
        return await self._receive()

    async def discard(self) -> None:
        """Read the rest of the file for a limited time, because a client that still sends might miss the answer.

        A client that was silent for too long gets no further time.
        """
        if isinstance(self._failure, Refusal) and self._failure.status == HTTPStatus.REQUEST_TIMEOUT:
            self._is_read.set()
            return
        try:
            async with asyncio.timeout(self._read_s):
                while not self._is_read.is_set():
                    await self._next()
        except (TimeoutError, Refusal, ClientDisconnect):
            self._is_read.set()

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._read_s):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(408, f"no byte of the file came for {self._read_s:g} s: send it again") from None
        if message["type"] == "http.disconnect":
            self._is_read.set()
            raise ClientDisconnect
        if not message.get("more_body", False):
            self._is_read.set()
        return bytes(message.get("body", b""))
