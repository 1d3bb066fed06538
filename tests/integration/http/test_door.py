"""Who gets in at the doors, HTTP and MCP, in which order, and with how many connections, requests and bytes."""

import asyncio
import contextlib
import json
import os
import re
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from gateway.http.operations import Access
from gateway.http.serving import served_operations
from gateway.http.settings import HttpSettings
from gateway.web import callers, connections
from gateway.web.bodies import MAX_READS, MAX_VALUES
from pagantic.orchestrator.v1 import key_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient, chat_request
from pagantic_common.domain.calls.api_keys import StoredKey, hash_of, make_key
from pagantic_common.domain.calls.principal import DEFAULT_TENANT, Scope
from pagantic_common.rpc.call import call_unary
from services.orchestrator.servicer import SCOPES
from tests.support.calls_at_once import counting_calls
from tests.support.http_app import chat_body, serving_http
from tests.support.mcp_app import call, deployment, result_in, serving_mcp
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

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

    async def until_running(self, count):
        """Wait until this number of requests runs."""
        async with asyncio.timeout(10):
            while self.server.app.entry.request_count != count:  # noqa: ASYNC110 - the count has no event
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
    async with door(auth=auth, max_connections=16, read_s=0.6) as served:
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


async def test_a_newcomer_takes_a_silent_place_while_the_peer_with_most_connections_is_busy(door):
    async with door(auth="none", max_connections=4, read_s=60) as served:
        busy = [await served.connect("127.0.0.2") for _ in range(2)]
        for _, writer in busy:
            writer.write(served.head(1000))
        silent = [await served.connect(host) for host in ("127.0.0.3", "127.0.0.4")]
        await served.until_running(2)
        assert await served.ask(host="127.0.0.5") == 200
        assert await is_closed(silent[0][0], within_s=5)
        for _, writer in busy + silent:
            writer.close()


async def test_a_head_that_begins_after_an_answer_has_its_time_too(door):
    async with door(read_s=0.3) as served:
        reader, writer = await served.connect()
        body = served.body()
        writer.write(served.head(len(body)) + body)
        assert await status_in(reader) == 200
        await served.until_running(0)
        writer.write(b"P")
        assert await is_closed(reader, within_s=3)
        writer.close()


async def test_a_client_that_sends_after_its_answer_is_closed_in_time(door):
    async with door(read_s=0.3) as served:
        reader, writer = await served.connect()
        writer.write(served.head(1000, {"host": "evil.example"}).replace(b"host: localhost\r\n", b""))
        assert await status_in(reader) == 421
        assert await is_closed(reader, within_s=3)
        writer.close()


async def test_a_client_that_reads_nothing_frees_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "WRITE_S", 0.3)
    async with deployment(tmp_path) as world, serving_http(world) as server:
        served = Door("http", server)
        _, writer = await served.connect()
        # The answers fill the buffers of both sides, so that the next request waits to send its answer.
        writer.write(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200)
        async with asyncio.timeout(20):
            while not writer.transport.is_closing():
                writer.write(b"\r\n")
                await asyncio.sleep(0.02)
        await served.until_running(0)


async def test_a_client_that_reads_slowly_gets_its_whole_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "WRITE_S", 0.3)
    monkeypatch.setattr(connections, "SEND_BUFFER_BYTES", 1 << 16)
    async with deployment(tmp_path) as world, serving_http(world) as server:
        size = len((await server.http.get("/openapi.json")).content)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        slow.connect(("127.0.0.1", server.http.base_url.port))
        reader, writer = await asyncio.open_connection(sock=slow)
        with closing(writer):
            writer.write(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2)
            began_s, read_bytes = time.monotonic(), 0
            async with asyncio.timeout(60):
                while read_bytes < 2 * size:
                    part = await reader.read(size // 8)
                    assert part
                    read_bytes += len(part)
                    await asyncio.sleep(0.07)
        assert time.monotonic() - began_s > 2 * connections.WRITE_S


ADMIN = make_key(os.urandom)
STORED = StoredKey(DEFAULT_TENANT, ADMIN.key_id, "admin", frozenset(Scope), hash_of(ADMIN.secret), 0.0)


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def checks(monkeypatch):
    """Return the list of all calls that check a key, which holds the key."""
    asked = []
    ask = AsyncClient.list_prompt_templates

    async def counted(self):
        asked.append(self._credentials)
        return await ask(self)

    monkeypatch.setattr(AsyncClient, "list_prompt_templates", counted)
    return asked


def admin_keys():
    return {ADMIN.key_id: STORED}


async def answer_in(reader):
    """Return the status and the JSON of an answer that has its length."""
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(re.search(r"content-length: (\d+)", head)[1])
        return int(head.split()[1]), json.loads(await reader.readexactly(length))


@pytest.mark.parametrize("auth", ["local", "none", "keys"])
async def test_an_unknown_key_is_refused_before_its_body_is_read(door, auth):
    async with door(auth=auth, keys=admin_keys) as served:
        reader, writer = await served.connect()
        writer.write(served.head(100_000, bearer(make_key(os.urandom).text)) + b"{")
        status, answer = await answer_in(reader)
        writer.close()
    assert (status, "key" in answer["error"]["message"]) == (401, True)


async def test_a_key_is_checked_once_in_seconds_and_once_at_a_time(door, checks, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(callers, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    async with door(auth="keys", keys=admin_keys) as served:
        statuses = await asyncio.gather(*(served.ask(bearer(ADMIN.text)) for _ in range(4)))
        assert (set(statuses), len(checks)) == ({200}, 1)
        now_s[0] += callers.KNOWN_S
        assert (await served.ask(bearer(ADMIN.text)), len(checks)) == (200, 2)


async def test_a_revoked_key_is_forgotten(door, monkeypatch):
    monkeypatch.setattr(callers, "KNOWN_S", 0.2)
    async with door(auth="keys", keys=admin_keys) as served:
        stub, credentials = served.server.world.stub, f"Bearer {ADMIN.text}"
        request = pb.CreateKeyRequest(tenant="acme", subject="ci", scopes=[key_pb2.KEY_SCOPE_EXECUTE])
        made = await call_unary("orchestrator", stub.CreateKey, request, 10.0, credentials=credentials)
        assert await served.ask(bearer(made.text)) == 200
        request = pb.RevokeKeyRequest(key_id=made.key.key_id)
        await call_unary("orchestrator", stub.RevokeKey, request, 10.0, credentials=credentials)
        async with asyncio.timeout(20):
            while await served.ask(bearer(made.text)) != 401:  # noqa: ASYNC110 - the door has no event for it
                await asyncio.sleep(0.1)


async def test_a_key_that_nobody_can_check_is_refused_without_its_body(door, monkeypatch):
    monkeypatch.setattr(callers, "CHECK_S", 0.2)

    async def wait(_self):
        await asyncio.sleep(60)

    monkeypatch.setattr(AsyncClient, "list_prompt_templates", wait)
    async with door() as served:
        reader, writer = await served.connect()
        writer.write(served.head(1000, bearer("any")))
        assert await status_in(reader) == 503
        writer.close()


async def test_a_body_that_is_too_large_is_refused_before_a_byte_of_it_comes(door):
    async with door(max_body_bytes=2048, max_message_bytes=2048) as served:
        reader, writer = await served.connect()
        writer.write(served.head(2049))
        assert await status_in(reader) == 413
        writer.close()


def pool(host):
    """Return a client that keeps its connections, from an address of this machine."""
    limits = httpx.Limits(keepalive_expiry=60)
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(local_address=host, limits=limits), timeout=20)


async def port_of(client, served):
    """Ask the model, and return the port of the client's connection."""
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    url = f"http://127.0.0.1:{served.port}{served.path}"
    response = await client.post(url, content=served.body(), headers=headers)
    assert response.status_code == 200
    return response.extensions["network_stream"].get_extra_info("client_addr")[1]


async def test_connections_stay_open_between_requests_until_their_places_are_needed(door):
    async with door(auth="none", max_connections=8, read_s=60) as served, AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(pool(f"127.0.0.{number}")) for number in range(2, 8)]
        ports = [await port_of(client, served) for client in pools]
        _, writer = await served.connect()
        writer.write(served.head(100))
        await served.until_running(1)
        await asyncio.sleep(connections.MIN_IDLE_S + 0.5)
        assert await port_of(pools[0], served) == ports[0]
        # A busy caller needs a second connection, so that the connection that was idle for longest is closed.
        assert await served.ask() == 200
        kept = [await port_of(client, served) == port for client, port in zip(pools, ports, strict=True)]
        assert kept == [True, False, True, True, True, True]
        writer.close()


async def test_no_idle_connection_is_closed_for_a_peer_that_gets_no_place_by_it(door, monkeypatch):
    monkeypatch.setattr(connections, "MIN_IDLE_S", 0.1)
    async with door(auth="none", max_connections=8, read_s=60) as served, pool(OTHER_HOST) as client:
        busy = [await served.connect() for _ in range(4)]
        for _, writer in busy:
            writer.write(served.head(100))
        await served.until_running(4)
        port = await port_of(client, served)
        await asyncio.sleep(0.3)
        # The peer holds half of the places, so that it lacks two for a further one.
        reader, writer = await served.connect()
        assert await is_closed(reader)
        assert await port_of(client, served) == port
        writer.close()
        for _, writer in busy:
            writer.close()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_client_that_reads_after_it_has_sent_sees_why_it_was_refused(door, connection):
    async with door(max_body_bytes=2048, max_message_bytes=2048) as served:
        reader, writer = await served.connect()
        writer.write(served.head(4_000_000, {"connection": connection}))
        for _ in range(40):
            writer.write(b"x" * 100_000)
            await writer.drain()
        assert await status_in(reader) == 413
        assert connection == "keep-alive" or await is_closed(reader)
        writer.close()


async def test_bodies_have_so_many_bytes_together_and_each_caller_its_share(door):
    limits = {"max_bodies_bytes": 200_000, "max_body_bytes": 100_000, "max_message_bytes": 100_000, "read_s": 60}
    async with door(auth="none", **limits) as served:
        slow = [await served.connect() for _ in range(3)]
        for count, (_, writer) in enumerate(slow):
            await served.until_running(count)
            writer.write(served.head(60_000, bearer("one")) + b"{")
        # One caller has its share of the bytes, and another caller finds room.
        assert await status_in(slow[2][0]) == 503
        assert await served.ask(bearer("two")) == 200
        for _, writer in slow:
            writer.close()
        await served.until_running(0)
        assert served.server.app.entry.bodies.memory.free == 200_000


async def test_a_body_of_very_many_values_is_refused(door):
    async with door() as served:
        reader, writer = await served.connect()
        body = json.dumps({"model": "", "messages": [{}] * MAX_VALUES}).encode()
        writer.write(served.head(len(body)) + body)
        status, answer = await answer_in(reader)
        writer.close()
    assert (status, f"more than {MAX_VALUES} values" in answer["error"]["message"]) == (400, True)


def long_bodies():
    """Yield the path of each operation with a form, and a body with very many wrong items in one field of the form."""
    for operation in served_operations(HttpSettings()):
        if operation.form is None or not issubclass(operation.form, BaseModel):
            continue
        for name, field in operation.form.model_fields.items():
            if "list[" in str(field.annotation) or "Items(" in str(field):
                path = re.sub(r"{[^}]*}", "x", operation.path)
                for item in (0, {}, [0]):
                    yield operation.method, path, {field.alias or name: [item] * 20_000}


async def test_very_many_wrong_items_take_little_time_in_every_operation(tmp_path):
    async with deployment(tmp_path) as world, serving_http(world) as server:
        await server.chat()  # The check of the first answer builds the document.
        for method, path, body in long_bodies():
            began_s = time.process_time()
            answer = await server.http.request(method, path, json={"model": "", **body})
            assert answer.status_code in (400, 404), (path, body.keys(), answer.text)
            assert time.process_time() - began_s < 0.5, (path, body.keys())


async def test_very_many_wrong_steps_take_little_time(tmp_path):
    async with deployment(tmp_path) as world, serving_mcp(world) as server:
        began_s = time.process_time()
        answer = result_in(await server.post(call("plan", {"task": "x", "steps": [0] * 20_000})))
        assert time.process_time() - began_s < 0.5
    assert "steps" in answer["result"]["content"][0]["text"]


@pytest.mark.parametrize("auth", ["none", "keys"])
async def test_a_caller_with_many_requests_leaves_places_to_others(door, auth):
    keys = admin_keys if auth == "keys" else None
    one = bearer(ADMIN.text) if auth == "keys" else {}
    async with door(auth=auth, keys=keys, max_streams=8, read_s=60) as served:
        other = {}
        if auth == "keys":
            stub, credentials = served.server.world.stub, f"Bearer {ADMIN.text}"
            request = pb.CreateKeyRequest(tenant="acme", subject="ci", scopes=[key_pb2.KEY_SCOPE_EXECUTE])
            made = await call_unary("orchestrator", stub.CreateKey, request, 10.0, credentials=credentials)
            other = bearer(made.text)
        held = [await served.connect() for _ in range(4)]
        for _, writer in held:
            writer.write(served.head(1000, one))
        await served.until_running(4)
        assert await served.ask(one) == 503
        assert await served.ask(other, host=OTHER_HOST) == 200
        for _, writer in held:
            writer.close()


@asynccontextmanager
async def large_conversation(tmp_path, services=None, **settings):
    """Serve a gateway with a stored conversation of a megabyte, and yield the door and the path of the items."""
    async with deployment(tmp_path, services) as world, serving_http(world, auth="none", **settings) as server:
        item = {"type": "message", "role": "user", "content": "x" * 99_000}
        made = await server.http.post("/v1/conversations", json={"items": [item] * 10}, headers=bearer("one"))
        yield Door("http", server), f"/v1/conversations/{made.json()['id']}/items"


async def test_answers_that_nobody_reads_have_so_many_bytes_together_and_each_caller_its_share(tmp_path):
    async with large_conversation(tmp_path, max_bodies_bytes=4_500_000) as (served, path):
        request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n\r\n".encode()
        with contextlib.ExitStack() as opened:
            statuses = []
            for _ in range(6):
                connection = opened.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                connection.connect(("127.0.0.1", served.port))
                reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 14)
                opened.enter_context(closing(writer))
                writer.write(request)
                statuses.append(await status_in(reader))
            # The caller has its share of the bytes, and another caller finds room.
            assert statuses == [200, 200, 503, 503, 503, 503]
            answer = await served.server.http.get(path, headers=bearer("two"))
            assert (answer.status_code, len(answer.json()["data"])) == (200, 10)
        await served.until_running(0)
        assert served.server.app.entry.bodies.memory.free == 4_500_000


async def test_an_answer_whose_work_is_done_is_sent_and_counts_with_what_fits(door):
    inference = ScriptedInference(answer("x" * 200_000))
    async with door(scripted_services(inference=inference), auth="none") as served:
        memory = served.server.app.entry.bodies.memory
        assert memory.begin("another", memory.free - 10_000)
        headers = bearer("one") | {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        async with httpx.AsyncClient(timeout=20) as client:
            url = f"http://127.0.0.1:{served.port}{served.path}"
            response = await client.post(url, content=served.body(), headers=headers)
        await served.until_running(0)
        assert (response.status_code, response.text.count("x" * 200_000) > 0) == (200, True)
        assert (len(inference.commands), memory.free) == (1, 10_000)


async def test_a_body_and_its_answer_count_as_the_larger_of_them(tmp_path):
    services = scripted_services(inference=ScriptedInference(answer("y" * 300_000)))
    async with deployment(tmp_path, services) as world, serving_http(world, auth="none") as server:
        memory, held_bytes = server.app.entry.bodies.memory, []
        end = memory.end
        memory.end = lambda owner, amount: (held_bytes.append(memory.held_by(owner)), end(owner, amount))
        response = await server.chat("x" * 200_000, headers=bearer("one"))
        assert (response.status_code, max(held_bytes)) == (200, len(response.content))


@asynccontextmanager
async def stored_response(tmp_path, text="hello", **fields):
    """Store a response, fill the memory of the gateway, and yield the server and the id of the response."""
    services = scripted_services(inference=ScriptedInference(answer(text)))
    async with deployment(tmp_path, services) as world, serving_http(world, auth="none") as server:
        body = {"model": "", "input": "hi", **fields}
        made = await server.http.post("/v1/responses", json=body, headers=bearer("one"))
        await Door("http", server).until_running(0)
        memory = server.app.entry.bodies.memory
        assert memory.begin("another", memory.free - 10_000)
        yield server, made.json()["id"]
        await Door("http", server).until_running(0)
        assert memory.free == 10_000


async def test_a_stream_that_reads_has_an_error_for_an_event_without_room(tmp_path):
    async with stored_response(tmp_path, "x" * 200_000) as (server, response_id):
        path = f"/v1/responses/{response_id}?stream=true"
        response = await server.http.get(path, headers=bearer("one"))
    *events, last, _ = response.text.split("\n\n")
    assert (response.status_code, events[0].splitlines()[0]) == (200, "event: response.created")
    assert (last.splitlines()[0], "share of the memory" in last) == ("event: error", True)
    assert "response.completed" not in response.text


async def test_a_stream_that_reads_has_a_status_for_a_first_event_without_room(tmp_path):
    async with stored_response(tmp_path, instructions="x" * 200_000) as (server, response_id):
        path = f"/v1/responses/{response_id}?stream=true"
        response = await server.http.get(path, headers=bearer("one"))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "share of the memory" in response.json()["error"]["message"]


async def test_a_stream_that_breaks_without_an_event_for_its_error_is_cut(tmp_path):
    async with stored_response(tmp_path, "x" * 200_000) as (server, response_id):
        headers = {"accept": "text/event-stream"} | bearer("one")
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await server.http.get(f"/v1/executions/{response_id.removeprefix('resp_')}", headers=headers)


async def test_a_stream_whose_work_is_done_has_all_of_its_events(tmp_path):
    async with stored_response(tmp_path, "x" * 200_000) as (server, _):
        body = {"model": "", "input": "hi", "stream": True}
        response = await server.http.post("/v1/responses", json=body, headers=bearer("one"))
    assert (response.status_code, response.text.count("event: response.completed")) == (200, 1)


async def test_stored_items_that_a_request_refers_to_count_as_its_body(tmp_path):
    services = scripted_services(inference=ScriptedInference(None, None, None))
    async with large_conversation(tmp_path, services, max_bodies_bytes=4_500_000) as (served, path):
        http, memory = served.server.http, served.server.app.entry.bodies.memory
        items = (await http.get(path)).json()["data"]
        body = {"model": "", "input": [{"type": "item_reference", "id": item["id"]} for item in items]}
        async with asyncio.TaskGroup() as group, asyncio.timeout(20):
            running = []
            for count in (1, 2):
                posting = http.post("/v1/responses", json=body, headers=bearer("one"))
                running.append(group.create_task(posting))
                while memory.free > 4_500_000 - count * 900_000:  # noqa: ASYNC110 - the memory has no event
                    await asyncio.sleep(0.01)
            refused = await http.post("/v1/responses", json=body, headers=bearer("one"))
            for task in running:
                task.cancel()
        await served.until_running(0)
        assert (refused.status_code, memory.free) == (503, 4_500_000)


async def test_few_reads_of_a_caller_run_at_once(tmp_path, monkeypatch):
    reads = counting_calls(monkeypatch, AsyncClient, "get_session_page")
    async with large_conversation(tmp_path) as (served, path):
        get = served.server.http.get
        answers = await asyncio.gather(*(get(path, headers=bearer("one")) for _ in range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    assert reads.largest <= 4


REFERENCE = {"type": "item_reference", "id": "msg_x_0"}
MESSAGE = {"type": "message", "role": "user", "content": "hi"}
READING = [
    ("GET", "/v1/responses/x", None),
    ("DELETE", "/v1/responses/x", None),
    ("POST", "/v1/responses/x/cancel", None),
    ("POST", "/v1/chat/completions/x", {"metadata": {}}),
    ("DELETE", "/v1/chat/completions/x", None),
    ("DELETE", "/v1/conversations/x/items/msg_x_0", None),
    ("POST", "/v1/conversations/x/items", {"items": [MESSAGE]}),
    ("POST", "/v1/conversations", {"items": [REFERENCE]}),
    ("POST", "/v1/responses", {"model": "", "input": [REFERENCE]}),
    ("POST", "/v1/responses", {"model": "", "input": "hi", "previous_response_id": "x"}),
    ("POST", "/v1/responses/input_tokens", {"input": "hi", "conversation": "x"}),
]
NOT_READING = [
    *(("GET", path, None) for path in ("/v1/models", "/v1/models/x", "/v1/tools", "/v1/replicas", "/v1/pulled-models")),
    *(("GET", path, None) for path in ("/api/tags", "/api/ps", "/api/version")),
    ("POST", "/v1/conversations", {"items": [MESSAGE]}),
    ("POST", "/v1/responses", {"model": "", "input": [MESSAGE]}),
    ("POST", "/v1/responses/input_tokens", {"input": "hi"}),
]


@asynccontextmanager
async def no_place_for_reads(tmp_path):
    """Serve a gateway in which others hold all places for reads."""
    async with deployment(tmp_path) as world, serving_http(world) as server, AsyncExitStack() as held:
        reads = server.app.entry.bodies.reads
        for number in range(MAX_READS):
            await held.enter_async_context(reads.place(str(number)))
        yield server.http, reads


@pytest.mark.parametrize(("method", "path", "body"), READING)
async def test_a_request_that_reads_stored_content_waits_for_a_place(tmp_path, method, path, body):
    async with no_place_for_reads(tmp_path) as (http, reads), asyncio.timeout(20):
        running = asyncio.create_task(http.request(method, path, json=body))
        while not (reads.waiting or running.done()):  # noqa: ASYNC110 - the queue has no event
            await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])


async def test_a_request_that_reads_nothing_stored_waits_for_no_place(tmp_path):
    async with no_place_for_reads(tmp_path) as (http, _), asyncio.timeout(20):
        for method, path, body in NOT_READING:
            await http.request(method, path, json=body)


async def test_no_place_for_reads_is_held_while_the_orchestrator_works_on_new_items(tmp_path, monkeypatch):
    observed = []
    update = AsyncClient.update_session
    async with large_conversation(tmp_path, max_bodies_bytes=4_500_000) as (served, path):
        http, bodies = served.server.http, served.server.app.entry.bodies

        async def observe(*args, **options):
            observed.append((bodies.reads.taken, bodies.memory.capacity - bodies.memory.free > 900_000))
            return await update(*args, **options)

        items = [{"type": "item_reference", "id": item["id"]} for item in (await http.get(path)).json()["data"]]
        monkeypatch.setattr(AsyncClient, "update_session", observe)
        for made_at in (path, "/v1/conversations"):
            assert (await http.post(made_at, json={"items": items})).status_code == 200
    assert observed == [(0, True)] * 2, "the stored items count as the body"


async def test_streams_leave_places_to_other_requests(tmp_path):
    services = scripted_services(inference=ScriptedInference(None))
    async with (
        deployment(tmp_path, services) as world,
        serving_http(world, max_streams=8) as server,
        AsyncExitStack() as streams,
    ):
        opened = [await streams.enter_async_context(server.chat_stream()) for _ in range(7)]
        assert {answer.status_code for answer in opened} == {200}
        refused = await server.chat(stream=True)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await server.http.get("/v1/models")).status_code == 200


def calls():
    """Yield each operation of the gateway with a path for it."""
    for operation in served_operations(HttpSettings()):
        yield operation, re.sub(r"{[^}]*}", "x", operation.path)


async def test_no_browser_guesses_the_type_of_an_answer(tmp_path):
    async with deployment(tmp_path) as world, serving_http(world) as http, serving_mcp(world) as mcp:
        answers = [await http.http.request(operation.method, path) for operation, path in calls()]
        answers += [await http.http.get("/none"), await mcp.post(call("clock")), await mcp.http.put(mcp.url)]
    headers = [answer.headers.get_list("x-content-type-options") for answer in answers]
    assert headers == [["nosniff"]] * len(answers)


async def test_a_page_must_name_json_which_needs_a_permission_of_the_browser(tmp_path):
    async with deployment(tmp_path) as world, serving_http(world) as server:
        port = server.http.base_url.port
        page = {"host": f"localhost:{port}", "origin": f"http://localhost:{port}"}
        for operation, path in calls():
            if operation.form is None:
                continue
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                headers = page | ({"content-type": kind} if kind else {})
                refused = await server.http.request(operation.method, path, content=b"{}", headers=headers)
                assert refused.status_code == 415, path
        assert (await server.http.post("/v1/conversations", headers=page)).status_code == 200
        for kind in ("application/json; charset=utf-8", "application/vnd.x+json"):
            typed = page | {"content-type": kind}
            assert (await server.http.post("/api/show", content=b"{}", headers=typed)).status_code == 400
        typed = {"content-type": "text/plain"}
        assert (await server.http.post("/api/show", content=b"{}", headers=typed)).status_code == 400


async def test_the_gateways_own_key_lends_nobody_the_scope_admin(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGANTIC_API_KEY", ADMIN.text)
    async with deployment(tmp_path, admin_keys=admin_keys) as world, serving_http(world) as server:
        for operation, path in calls():
            if not operation.needs_key:
                continue
            needs_admin = operation.access is Access.ADMIN
            refused = await server.http.request(operation.method, path)
            assert ("scope admin of its own key" in refused.text) == needs_admin, path
            if needs_admin:
                own = await server.http.request(operation.method, path, headers=bearer(ADMIN.text))
                assert own.status_code != 403, path


def test_operations_that_call_a_method_of_operators_are_marked():
    marked = {operation.name for operation, _ in calls() if operation.access is Access.ADMIN}
    methods = {method for method, scope in SCOPES.items() if scope is Scope.ADMIN}
    for operation, _ in calls():
        names = operation.handle.__code__.co_names
        uses = {name.title().replace("_", "") for name in names} & methods
        assert (operation.name in marked) == bool(uses), (operation.name, uses)


async def test_a_stream_that_follows_a_long_execution_ends_with_the_time_of_a_request(tmp_path):
    services = scripted_services(inference=ScriptedInference(None))
    async with deployment(tmp_path, services) as world, serving_http(world, call_s=0.4) as server:
        async with AsyncClient(world.address) as client:
            request = chat_request("hi", request_id="long", timeout_s=60)
            request.background = True
            started = client.stream(request)
            await anext(started)
            await started.aclose()
        headers = {"accept": "text/event-stream"}
        async with asyncio.timeout(20), server.http.stream("GET", "/v1/executions/long", headers=headers) as answer:
            assert answer.status_code == 200
            assert "completed" not in "".join([line async for line in answer.aiter_lines()])
        await Door("http", server).until_running(0)
