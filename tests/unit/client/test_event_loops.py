"""A client may be used in several event loops, one after the other or at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from pagantic_common.client import AsyncClient, chat_request
from pagantic_common.domain.errors import PaganticError
from tests.unit.client.scripted_orchestrator import ScriptedOrchestrator, serving


@pytest.fixture(scope="module")
def address():
    with serving(ScriptedOrchestrator()) as at:
        yield at


async def say(client):
    return (await client.chat("hi")).content


async def stream(client):
    return [event.WhichOneof("event") async for event in client.stream(chat_request("hi"))]


async def leave_stream(client):
    """Leave a stream open when the loop ends."""
    events = client.stream(chat_request("hang"))
    return (await anext(events)).content_delta.text


def test_a_client_works_in_one_loop_after_another(address):
    client = AsyncClient(address, timeout_s=10)
    for _ in range(3):
        assert asyncio.run(say(client)) == "hello"
        assert asyncio.run(stream(client)) == ["content_delta", "completed"]
    asyncio.run(client.close())
    assert asyncio.run(say(client)) == "hello"
    asyncio.run(client.close())


def test_a_stream_that_a_loop_left_open_does_not_trouble_the_next_loop(address):
    client = AsyncClient(address, timeout_s=10)
    for _ in range(3):
        assert asyncio.run(leave_stream(client)) == "hel"
        assert asyncio.run(say(client)) == "hello"
    asyncio.run(client.close())


def test_the_connections_of_ended_loops_are_closed(address):
    client = AsyncClient(address, timeout_s=10)
    for _ in range(5):
        asyncio.run(say(client))
    assert len(client._connections._connections) == 1
    asyncio.run(client.close())
    assert not client._connections._connections


def test_a_client_works_in_several_loops_at_once(address):
    client = AsyncClient(address, timeout_s=20)
    answers = []

    async def say_often():
        answers.extend(await asyncio.gather(*(say(client) for _ in range(20))))
        answers.append((await stream(client))[-1])

    threads = [threading.Thread(target=lambda: asyncio.run(say_often())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["completed"] * 4 + ["hello"] * 80


def test_a_client_for_another_caller_shares_the_connections_of_every_loop(address):
    client = AsyncClient(address, timeout_s=10)
    other = client.for_caller("key")

    async def both():
        assert await say(client) == await say(other) == "hello"
        assert len(client._connections._connections) == 1

    asyncio.run(both())
    asyncio.run(both())
    asyncio.run(other.close())
    assert not client._connections._connections


def test_closing_in_one_loop_ends_the_calls_of_another_loop(address):
    client = AsyncClient(address, timeout_s=3600)
    began, ended = threading.Event(), threading.Event()

    async def wait():
        async for _ in client.stream(chat_request("hang")):
            began.set()

    def run():
        with contextlib.suppress(PaganticError, asyncio.CancelledError):
            asyncio.run(wait())
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert began.wait(10)
    asyncio.run(client.close())
    assert ended.wait(10)
    thread.join(10)
