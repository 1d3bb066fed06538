"""Who gets in at the doors, HTTP and MCP, in which order, and with how many connections, requests and bytes."""

import asyncio
import json
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.web import connections
from tests.support.http_app import chat_body, serving_http
from tests.support.mcp_app import call, deployment, serving_mcp

SERVING = {"http": serving_http, "mcp": serving_mcp}
OTHER_HOST = "127.0.0.2"


@dataclass
class Door:
    """A served door, and requests that it answers."""

    kind: str
    server: Any

    @property
    def port(self):
        return (self.server.http.base_url if self.kind == "http" else httpx.URL(self.server.url)).port

    @property
    def path(self):
        return "/v1/chat/completions" if self.kind == "http" else "/mcp"

    def body(self, text="hi", **fields):
        """Return the body of a request that asks the model."""
        value = chat_body(text, **fields) if self.kind == "http" else call("ask", {"question": text, **fields})
        return json.dumps(value).encode()

    def head(self, length, headers=()):
        """Return the head of a request whose body has so many bytes."""
        more = {"content-type": "application/json", "accept": "application/json, text/event-stream", **dict(headers)}
        lines = [f"POST {self.path} HTTP/1.1", "host: localhost", f"content-length: {length}"]
        return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in more.items()), "", ""]).encode()

    async def connect(self, host="127.0.0.1"):
        """Open a connection from an address of this machine."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))

    async def ask(self, headers=(), host="127.0.0.1", **fields):
        """Ask the model over a connection of its own, and return the status."""
        body = self.body(**fields)
        reader, writer = await self.connect(host)
        with closing(writer):
            writer.write(self.head(len(body), headers) + body)
            return await status_in(reader)

    async def none_runs(self):
        """Wait until no request runs."""
        async with asyncio.timeout(10):
            while self.server.app.entry.request_count:  # noqa: ASYNC110 - the count has no event
                await asyncio.sleep(0.01)


async def status_in(reader):
    """Return the status of the next answer."""
    async with asyncio.timeout(20):
        return int((await reader.readline()).split()[1])


async def is_closed(reader, within_s=10):
    """Return whether the server closes a connection in time."""
    try:
        async with asyncio.timeout(within_s):
            while await reader.read(65536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.fixture(params=SERVING)
def door(request, tmp_path):
    """Return what serves a door with these services and settings."""

    @asynccontextmanager
    async def serve(services=None, *, keys=None, **settings):
        fields = {} if keys is None else {"admin_keys": keys}
        async with (
            deployment(tmp_path, services, **fields) as world,
            SERVING[request.param](world, **settings) as server,
        ):
            yield Door(request.param, server)

    return serve


@pytest.mark.parametrize("auth", ["local", "none"])
async def test_silent_connections_keep_nobody_out_and_are_closed(door, auth):
    async with door(auth=auth, max_connections=16, read_s=1) as served:
        silent = [await served.connect() for _ in range(32)]
        for _, writer in silent[::2]:
            writer.write(b"POST / HTTP/1.1\r\nhost: loc")
        assert await served.ask() == 200
        assert await served.ask(host=OTHER_HOST) == 200
        assert all(await asyncio.gather(*(is_closed(reader) for reader, _ in silent)))
        for _, writer in silent:
            writer.close()


async def test_a_peer_with_very_many_connections_leaves_places_to_others(door):
    async with door(auth="none", max_connections=8) as served:
        many = [await served.connect() for _ in range(16)]
        others = [await served.connect(OTHER_HOST) for _ in range(2)]
        body = served.body()
        for reader, writer in others:
            writer.write(served.head(len(body)) + body)
            assert await status_in(reader) == 200
        for _, writer in many + others:
            writer.close()


async def test_a_head_that_begins_after_an_answer_has_its_time_too(door):
    async with door(read_s=0.3) as served:
        reader, writer = await served.connect()
        body = served.body()
        writer.write(served.head(len(body)) + body)
        assert await status_in(reader) == 200
        await served.none_runs()
        writer.write(b"P")
        assert await is_closed(reader, within_s=3)
        writer.close()


async def test_a_client_that_sends_after_its_answer_is_closed_soon(door, monkeypatch):
    monkeypatch.setattr(connections, "LINGER_S", 0.2)
    async with door() as served:
        reader, writer = await served.connect()
        writer.write(served.head(1000, {"host": "evil.example"}).replace(b"host: localhost\r\n", b""))
        assert await status_in(reader) == 421
        assert await is_closed(reader, within_s=3)
        writer.close()


async def test_a_client_that_reads_nothing_frees_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "WRITE_S", 0.3)
    async with deployment(tmp_path) as world, serving_http(world) as server:
        served = Door("http", server)
        reader, writer = await served.connect()
        # The answers fill the buffers of both sides, so that the next request waits to send its answer.
        writer.write(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200)
        async with asyncio.timeout(20):
            while not server.app.entry.request_count:  # noqa: ASYNC110 - the count has no event
                await asyncio.sleep(0.01)
        await served.none_runs()
        assert await is_closed(reader)
        writer.close()


async def test_a_client_that_reads_slowly_gets_its_whole_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "WRITE_S", 1.5)
    async with deployment(tmp_path) as world, serving_http(world) as server:
        reader, writer = await Door("http", server).connect()
        size = len((await server.http.get("/openapi.json")).content)
        writer.write(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 40)
        read = 0
        async with asyncio.timeout(60):
            while read < 40 * size:
                part = await reader.read(1 << 18)
                assert part
                read += len(part)
                await asyncio.sleep(0.1)
        writer.close()
