"""Bounds the memory that answers take: few callers' reads run at once, and large answers count until they are sent.

A read takes several times the bytes of its answer while the answer is made. A client that reads slowly, or not at all,
keeps the bytes of an answer for as long as it stays connected. So two limits hold:

1. An operation that reads stored content has a place until its answer is made. A caller has few of the places, and
   callers take turns.
2. A large answer, or a large part of a stream, counts in the memory that also holds the bodies of requests, of which
   each caller has its share. It is sent in small parts, each after the client has read the parts before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Send

from gateway.web.bodies import Bodies
from pagantic_common.domain.errors import Overloaded
from pagantic_common.workers.fair_places import Place

PART_BYTES = 64 * 1024
RETRY_AFTER_S = 1.0


class Answers:
    """The limits of all answers of a server.

    Args:
        bodies: The limits of all bodies, with the memory and the places that callers share.
    """

    def __init__(self, bodies: Bodies) -> None:
        self.memory = bodies.memory
        self.reads = bodies.reads

    @asynccontextmanager
    async def begin(self, owner: str | None, send: Send) -> AsyncIterator[Answer]:
        """Count the bytes of the answer to a request inside the block."""
        answer = Answer(self, owner, send)
        try:
            yield answer
        finally:
            answer.release()


class Answer:
    """An answer that is made in turn and sent in parts.

    Args:
        answers: The limits of all answers.
        owner: The caller, or None for the only user of a local system.
        send: Sends a message to the client.
    """

    def __init__(self, answers: Answers, owner: str | None, send: Send) -> None:
        self._answers = answers
        self._owner = owner
        self._send = send
        self._held_bytes = 0

    def reading(self) -> AbstractAsyncContextManager[Place]:
        """Hold a place for a read of stored content inside the block."""
        return self._answers.reads.place(self._owner)

    async def send(self, message: Message) -> None:
        """Send a message of the answer. Raises Overloaded, and sends nothing, if its bytes do not fit."""
        if message["type"] == "http.response.start":
            # The length is known before the status is sent, so that a refusal can still be the answer.
            self._hold(int(Headers(raw=message["headers"]).get("content-length") or 0))
        body = message.get("body", b"")
        if len(body) <= PART_BYTES:
            await self._send(message)
            return
        self._hold(len(body))
        for start in range(0, len(body), PART_BYTES):
            part, is_last = body[start : start + PART_BYTES], start + PART_BYTES >= len(body)
            await self._send({**message, "body": part, "more_body": not is_last or message.get("more_body", False)})
        self.release()

    def _hold(self, size_bytes: int) -> None:
        # An answer that is larger than the whole memory may be sent if nothing else is held.
        missing_bytes = min(size_bytes, self._answers.memory.capacity) - self._held_bytes
        if size_bytes <= PART_BYTES or missing_bytes <= 0:
            return
        if not self._answers.memory.begin(self._owner, missing_bytes):
            raise Overloaded(
                f"the answer has {size_bytes} bytes, which do not fit into the caller's share of the memory for the "
                "bodies and answers of running requests: read the answers to other requests first, and try again",
                retry_after_s=RETRY_AFTER_S,
            )
        self._held_bytes += missing_bytes

    def release(self) -> None:
        """Free the memory of the answer."""
        self._answers.memory.end(self._owner, self._held_bytes)
        self._held_bytes = 0
