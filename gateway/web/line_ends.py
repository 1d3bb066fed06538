"""Escapes the characters of JSON at which line readers, such as `str.splitlines`, wrongly break a line.

JSON contains these characters only inside strings, where an escape has the same meaning. Control characters, which also
break lines, are escaped in all JSON.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

_ESCAPES = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\x85\u2028\u2029"}
_TYPES = ("application/json", "application/x-ndjson", "text/event-stream")


def escaping_line_ends(send: Send) -> Send:
    """Return a `send` that escapes these characters in JSON, in lines of JSON, and in server-sent events with JSON."""
    has_json = False
    waiting: Message | None = None  # The start of a response, whose length may change if its body is escaped.

    async def send_escaped(message: Message) -> None:
        nonlocal has_json, waiting
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            has_json = headers.get("content-type", "").startswith(_TYPES)
            if has_json and "content-length" in headers:
                waiting = message
                return
        elif waiting is not None:
            start, waiting = waiting, None
            if message.get("more_body"):  # The length of the escaped body is not known yet.
                has_json = False
            else:
                message = _escaped(message)
                MutableHeaders(scope=start)["content-length"] = str(len(message["body"]))
            await send(start)
        elif has_json:
            message = _escaped(message)
        await send(message)

    return send_escaped


def _escaped(message: Message) -> Message:
    """Return a part of a body with these characters escaped."""
    body = message.get("body", b"")
    for character, escape in _ESCAPES.items():
        body = body.replace(character, escape)
    return {**message, "body": body}
