"""The response to a request: tracks how much was sent, so that it can be ended properly."""

from __future__ import annotations

from starlette.types import Message, Receive, Scope, Send

from gateway.mcp.http.answers import Refusal


class Response:
    """Passes on a response, and remembers how far it is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False
        self._has_ended = False

    async def send(self, message: Message) -> None:
        """Pass on a part."""
        if message["type"] == "http.response.start":
            self._has_begun = True
        elif message["type"] == "http.response.body":
            self._has_ended = not message.get("more_body", False)
        await self._send(message)

    async def end(self, refusal: Refusal, scope: Scope, receive: Receive) -> None:
        """End a response that cannot continue: with a refusal if nothing of it was sent."""
        if not self._has_begun:
            await refusal.response()(scope, receive, self.send)
        elif not self._has_ended:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
