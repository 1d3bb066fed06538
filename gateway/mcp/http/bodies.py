"""Reads the parts of a request's body that determine its route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Receive

from gateway.mcp.http.answers import not_json
from pagantic_common.domain.text.json_text import JsonTextError, parse_json


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of a message that determine its route: its method, and the id of a request, otherwise empty."""

    method: str
    request_id: str

    @classmethod
    def read(cls, body: bytes) -> Envelope:
        """Read the envelope of a body; raises Refusal for invalid JSON. Other JSON values have an empty envelope."""
        try:
            message = parse_json(body.decode())
        except UnicodeDecodeError:
            raise not_json("it is not UTF-8") from None
        except JsonTextError as error:
            raise not_json(str(error)) from None
        if not isinstance(message, dict):
            return cls("", "")
        return cls(_text_of(message.get("method")), _text_of(message.get("id")))


def _text_of(value: Any) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    return ""


def replaying(body: bytes, receive: Receive) -> Receive:
    """Return a source of messages that returns the body again, and then later messages."""
    is_sent = False

    async def replay() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
