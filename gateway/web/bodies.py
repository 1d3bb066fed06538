"""Reads the bodies of requests within their limits: as a whole, or a file part by part."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import ParamSpec, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from gateway.web.refusal import RETRY_AFTER_S, Refusal, overloaded
from gateway.web.settings import DoorSettings
from pagantic_common.domain.calls.shares import Shares
from pagantic_common.domain.errors import InvalidRequest, Overloaded
from pagantic_common.workers.fair_places import FairPlaces, Place

# Work on a body of this size takes a few milliseconds on the event loop, which costs less than a thread.
SMALL_BYTES = 64 * 1024
THREADS = 2
MAX_READS = 32  # Reads of stored content need memory for their answers.
MAX_READS_OF_CALLER = 4
# Each value of a body takes memory and checking time. A body of 1 MiB of typical JSON has about this many values.
MAX_VALUES = 50_000
UPLOAD_S = 3600.0
# A string, or a character that begins a list, an object or another value. An unterminated string runs to the end.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


class Bodies:
    """The limits of a server's bodies: their size and time, and the memory and threads that callers share.

    Args:
        settings: The limits that all servers share.
        max_bytes: Largest body of a request.
    """

    def __init__(self, settings: DoorSettings, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.read_s = settings.read_s
        self.memory = Shares(max(settings.max_bodies_bytes, max_bytes))
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="body")
        self.places = FairPlaces(THREADS, of_owner=1, resource="a thread that reads bodies")
        self.reads = FairPlaces(
            MAX_READS, of_owner=MAX_READS_OF_CALLER, waiting=settings.max_streams, resource="a place of reads"
        )


class RequestBody:
    """The body of a running request. Its bytes count in the memory of all bodies until the request ends.

    While a larger answer is sent, the request counts as the bytes of the answer.

    Args:
        bodies: The limits of all bodies.
        owner: The caller, or None for the single user of a local system.
    """

    def __init__(self, bodies: Bodies, owner: str | None) -> None:
        self._bodies = bodies
        self.owner = owner
        # The body and the stored content that it refers to count together.
        self._request_bytes = 0
        # These bytes count in the memory of all bodies. They may be the bytes of the answer.
        self._held_bytes = 0

    async def read(self, request: Request, receive: Receive) -> bytes:
        """Return the body.

        Raises Refusal if the body is too large or too slow, or if the bodies of running requests leave too little
        memory; raises ClientDisconnect if the client disconnected.
        """
        self._hold(int(request.headers.get("content-length") or 0))
        try:
            async with asyncio.timeout(self._bodies.read_s):
                return await self._receive_all(receive)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self._bodies.read_s:g} s: send it again") from None

    async def _receive_all(self, receive: Receive) -> bytes:
        body = bytearray()
        has_more = True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            self._hold(len(body))
            has_more = message.get("more_body", False)
        return bytes(body)

    def _hold(self, size_bytes: int) -> None:
        if size_bytes > self._bodies.max_bytes:
            raise Refusal(413, f"the body has more than {self._bodies.max_bytes} bytes: send less")
        self.hold_stored(size_bytes)

    def hold_stored(self, size_bytes: int) -> None:
        """Raise the request's count to `size_bytes`, including stored content.

        Raises Refusal if the bodies of running requests leave too little memory.
        """
        missing_bytes = size_bytes - self._held_bytes
        if missing_bytes > 0:
            if not self._bodies.memory.begin(self.owner, missing_bytes):
                raise overloaded(
                    f"the request has {size_bytes} bytes, which do not fit into the caller's share of the memory for "
                    "the bodies of running requests: try later"
                )
            self._held_bytes = size_bytes
        self._request_bytes = max(self._request_bytes, size_bytes)

    def hold_answer(self, size_bytes: int, *, is_refusable: bool) -> None:
        """Raise the request's count to the bytes of its answer, or by as many bytes as fit, until `end_answer`.

        Raises Overloaded if the answer does not fit and may be refused.
        """
        memory = self._bodies.memory
        # An answer larger than the whole memory may be sent if no other bytes are held.
        missing_bytes = min(size_bytes, memory.capacity) - self._held_bytes
        free_bytes = memory.left_for(self.owner)
        if is_refusable and missing_bytes > free_bytes:
            raise Overloaded(
                f"the answer has {size_bytes} bytes, which do not fit into the caller's share of the memory for the "
                "bodies and answers of running requests: read the answers to other requests first, and try again",
                retry_after_s=RETRY_AFTER_S,
            )
        missing_bytes = min(missing_bytes, free_bytes)
        if missing_bytes > 0 and memory.begin(self.owner, missing_bytes):
            self._held_bytes += missing_bytes

    def end_answer(self) -> None:
        """Reduce the request's count to its own bytes, because the client has read the answer."""
        self._bodies.memory.end(self.owner, self._held_bytes - self._request_bytes)
        self._held_bytes = self._request_bytes

    def reading(self) -> AbstractAsyncContextManager[Place]:
        """Hold a place for reads of stored content inside the block."""
        return self._bodies.reads.place(self.owner)

    def release(self) -> None:
        """Free the memory of the request, because it has ended."""
        self._request_bytes = 0
        self.end_answer()

    async def work_on(
        self, body: bytes, work: Callable[ParamsT, ResultT], *args: ParamsT.args, **options: ParamsT.kwargs
    ) -> ResultT:
        """Return the result of synchronous work on a body, which runs in a thread if the body is large.

        Raises Overloaded if too many bodies wait for a thread.
        """
        if len(body) <= SMALL_BYTES:
            return work(*args, **options)
        async with self._bodies.places.place(self.owner) as place:
            running = self._bodies.threads.submit(work, *args, **options)
            place.keep_until(running)  # A thread continues even if its caller leaves.
            return await asyncio.wrap_future(running)


def check_values(body: bytes) -> None:
    """Raise InvalidRequest if a body of JSON has more than MAX_VALUES values, before they take memory.

    An empty list or object counts as two values.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") < MAX_VALUES:
        return
    count = 1
    for token in _TOKENS.finditer(body):
        count += not token[0].startswith(b'"')
        if count > MAX_VALUES:
            raise InvalidRequest(f"the body has more than {MAX_VALUES} values: send less")


class Upload:
    """A file that a client uploads. It is read only as fast as it is consumed, and never held as a whole.

    Args:
    receive: Returns the messages of the request.
    max_bytes: Maximum size of the file.
    read_s: Maximum time in seconds for which the client may be silent.
    whole_s: Maximum time in seconds for reading the whole file.
    """

    def __init__(self, receive: Receive, *, max_bytes: int, read_s: float, whole_s: float = UPLOAD_S) -> None:
        self._receive = receive
        self._whole_s = whole_s
        self._ends_at_s = time.monotonic() + whole_s
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
        """Read the rest of the file for a limited time, because a client that is still sending might miss the answer.

        A client that was silent for too long gets no more time.
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
        left_s = self._ends_at_s - time.monotonic()
        try:
            async with asyncio.timeout(min(self._read_s, left_s)):
                message = await self._receive()
        except TimeoutError:
            reason = f"no byte of the file came for {self._read_s:g} s: send it again"
            if left_s < self._read_s:
                reason = f"the file did not arrive within {self._whole_s:g} s: send a smaller one"
            raise Refusal(408, reason) from None
        if message["type"] == "http.disconnect":
            self._is_read.set()
            raise ClientDisconnect
        if not message.get("more_body", False):
            self._is_read.set()
        return bytes(message.get("body", b""))
