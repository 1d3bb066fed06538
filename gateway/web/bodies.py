"""Reads the body of a request within its limits."""

from __future__ import annotations

import anyio
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway.web.refusal import Refusal


async def read_body(receive: Receive, *, max_bytes: int, read_s: float) -> bytes:
    """Return the body. Raises Refusal for one that is too large or too slow, ClientDisconnect when the client left."""
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
