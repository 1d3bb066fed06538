"""Sends answers in small parts, and counts the bytes of large answers until the client has read them.

A client that reads slowly or not at all keeps the bytes of an answer in memory while it stays connected. A request
therefore counts in the memory of all bodies as its body or as the part of the answer that is being sent, whichever is
larger. If an answer does not fit into this memory:

1. The answer to a read is refused, because a client loses nothing if it reads again later.
2. Any other answer is sent, and counts only as many bytes as fit. Its work is done and its bytes are already in
   memory, and a client that sent the request again would repeat the work.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Message, Send

from gateway.web.bodies import RequestBody

PART_BYTES = 64 * 1024


class Answer:
    """The answer to a running request.

    Args:
        body: The body of the request, in whose memory the answer also counts.
        send: Sends a message to the client.
        is_refusable: Whether the request only reads, so that its answer may be refused.
    """

    def __init__(self, body: RequestBody, send: Send, *, is_refusable: bool = False) -> None:
        self.body = body
        self.is_refusable = is_refusable
        self._send = send

    def hold(self, size_bytes: int) -> None:
        """Count a large part of the answer until it is sent. Raises Overloaded if the part is refused."""
        if size_bytes > PART_BYTES:
            self.body.hold_answer(size_bytes, is_refusable=self.is_refusable)

    async def send(self, message: Message) -> None:
        """Send a message of the answer. Raises Overloaded without sending anything if its bytes are refused."""
        if message["type"] == "http.response.start":
            # The length is known before the status is sent, so a refusal is still possible.
            self.hold(int(Headers(raw=message["headers"]).get("content-length") or 0))
        body = message.get("body", b"")
        if len(body) <= PART_BYTES:
            await self._send(message)
            return
        self.hold(len(body))
        for start in range(0, len(body), PART_BYTES):
            part, is_last = body[start : start + PART_BYTES], start + PART_BYTES >= len(body)
            await self._send({**message, "body": part, "more_body": not is_last or message.get("more_body", False)})
        self.body.end_answer()
