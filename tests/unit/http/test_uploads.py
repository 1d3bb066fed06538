"""A file as the body of a request: its parts, its bounds, and what happens to the rest of one that is refused."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect

from gateway.web.bodies import Upload
from gateway.web.refusal import Refusal


def receiving(*messages):
    """Return what gives the messages in turn, and then none for ever."""
    left = list(messages)

    async def receive():
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive, left


def part(body, *, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


async def read(upload):
    return [one async for one in upload.parts()]


async def test_the_parts_come_in_order_and_the_message_after_them_is_the_next():
    receive, _ = receiving(part(b"a"), part(b""), part(b"b", more=False), {"type": "http.disconnect"})
    upload = Upload(receive, max_bytes=2, read_s=1)
    after = asyncio.create_task(upload.receive())
    assert b"".join(await read(upload)) == b"ab"
    assert (await after)["type"] == "http.disconnect"


async def test_a_file_over_the_bound_is_refused_and_its_rest_is_read():
    receive, left = receiving(part(b"abc"), part(b"d"), part(b"e", more=False))
    upload = Upload(receive, max_bytes=3, read_s=1)
    with pytest.raises(Refusal) as caught:
        await read(upload)
    assert (caught.value.status, len(left)) == (413, 1)
    await upload.discard()
    assert left == []


async def test_a_client_that_leaves_or_falls_silent_ends_the_file():
    gone = Upload(receiving(part(b"a"), {"type": "http.disconnect"})[0], max_bytes=9, read_s=1)
    with pytest.raises(ClientDisconnect):
        await read(gone)
    receive, left = receiving(part(b"a"))
    silent = Upload(receive, max_bytes=9, read_s=0.01)
    with pytest.raises(Refusal, match="no byte") as caught:
        await read(silent)
    assert caught.value.status == 408
    left.append(part(b"late"))
    await silent.discard()  # does not wait for it again
    assert left == [part(b"late")]
    gone_meanwhile = Upload(receiving(part(b"abc"))[0], max_bytes=1, read_s=0.01)
    with pytest.raises(Refusal):
        await read(gone_meanwhile)
    await gone_meanwhile.discard()  # ends although nothing comes
