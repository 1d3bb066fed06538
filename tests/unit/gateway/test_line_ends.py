"""Escapes of characters at which line readers break lines: in JSON alone, with the length that the body has then."""

import asyncio
import json

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.web.line_ends import escaping_line_ends

TEXT = 'a\u2028b\u2029c\x85d "ü\\u2028'
SCOPE = {"type": "http", "method": "GET", "headers": []}


async def sent_by(response):
    """Return the headers and the parts of the body that a client receives."""
    messages = []

    async def send(message):
        messages.append(message)

    async def receive():  # the client stays until the response has ended
        await asyncio.Event().wait()

    await response(SCOPE, receive, escaping_line_ends(send))
    start, *parts = messages
    assert start["type"] == "http.response.start"
    return dict(start["headers"]), [part["body"] for part in parts]


async def test_json_has_escapes_and_the_length_of_its_body():
    headers, [body] = await sent_by(JSONResponse({"text": TEXT}))
    assert json.loads(body) == {"text": TEXT}
    assert body.decode().splitlines() == [body.decode()]
    assert int(headers[b"content-length"]) == len(body)


@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "application/x-ndjson"])
async def test_each_part_of_a_stream_has_escapes(kind):
    async def parts():
        for _ in range(2):
            yield json.dumps(TEXT, ensure_ascii=False)

    _, bodies = await sent_by(StreamingResponse(parts(), media_type=kind))
    assert [json.loads(body) for body in bodies if body] == [TEXT, TEXT]
    assert all(len(body.decode().splitlines()) == 1 for body in bodies if body)


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "application/octet-stream"])
async def test_other_bodies_are_as_they_were(kind):
    _, [body] = await sent_by(Response(TEXT, media_type=kind))
    assert body == TEXT.encode()


async def test_a_body_in_parts_whose_length_was_named_is_as_it_was():
    async def parts():
        yield TEXT.encode()
        yield b"."

    length = {"content-length": str(len(TEXT.encode()) + 1)}
    headers, bodies = await sent_by(StreamingResponse(parts(), media_type="application/json", headers=length))
    assert b"".join(bodies) == TEXT.encode() + b"."
    assert headers[b"content-length"] == length["content-length"].encode()
