"""Requests that run at once: their events, their errors, and their end when nobody waits."""

import asyncio
import gc
import weakref

import pytest

from gateway.http.streams.running import merge_events, until_left
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import Unavailable

REQUESTS = [execution_pb2.SystemRequest(request_id=request_id) for request_id in ("a", "b")]


class GatedClient:
    """Streams an event when its gate opens, or raises `failure`, and then waits; counts what still runs."""

    def __init__(self, failure=None):
        self.gate = asyncio.Event()
        self.failure = failure
        self.running = 0

    async def stream(self, request):
        self.running += 1
        try:
            await self.gate.wait()
            if self.failure is not None:
                raise self.failure
            yield event_pb2.ExecutionEvent(layer=request.request_id)
            await asyncio.Event().wait()
        finally:
            self.running -= 1


async def read_all(client):
    async for _ in merge_events([client.stream(one) for one in REQUESTS[:1]], 60.0):
        pass


async def turn(count):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(12))
async def test_a_reader_that_is_cancelled_while_an_event_comes_ends(turns):
    client = GatedClient()
    reading = asyncio.create_task(read_all(client))
    await turn(5)
    client.gate.set()
    await turn(turns)
    reading.cancel()
    await asyncio.wait({reading}, timeout=5)
    assert reading.cancelled()


async def test_events_have_the_position_of_their_request_and_a_quiet_time_is_told():
    client = GatedClient()
    events = merge_events([client.stream(one) for one in REQUESTS], 0.01)
    assert await anext(events) is None
    client.gate.set()
    told = []
    while len(told) < len(REQUESTS):
        if one := await anext(events):
            told.append(one)
    await events.aclose()
    assert {(position, event.layer) for position, event in told} == {(0, "a"), (1, "b")}
    assert client.running == 0


async def test_the_error_of_one_request_ends_all():
    client = GatedClient(Unavailable("nothing answers"))
    client.gate.set()
    with pytest.raises(Unavailable, match="nothing answers"):
        async for _ in merge_events([client.stream(one) for one in REQUESTS], 60.0):
            pass
    assert client.running == 0


class Content:
    """An object that takes memory in an answer."""


async def test_the_content_of_an_answer_that_fails_is_freed_without_a_collection():
    contents = []

    async def work():
        content = Content()
        contents.append(weakref.ref(content))
        raise Unavailable("nothing answers")

    async def serve():
        with pytest.raises(Unavailable):
            await until_left(asyncio.Event().wait, work())

    gc.disable()
    try:
        await serve()
        await turn(1)
        assert contents[0]() is None
    finally:
        gc.enable()


async def test_few_bytes_of_events_wait_for_a_slow_reader():
    made = 0

    async def stream():
        nonlocal made
        while True:
            made += 1
            yield event_pb2.ExecutionEvent(layer="x" * 50_000)

    events = merge_events([stream()], 60.0)
    assert await anext(events)
    await turn(200)
    await events.aclose()
    assert made <= 4
