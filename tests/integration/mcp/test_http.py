"""What the HTTP transport refuses, whose sessions are whose, and what is left when clients have gone."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.mcp.settings import McpSettings
from pagantic.common.v1 import chunk_pb2
from pagantic.context.v1 import context_service_pb2 as context_pb
from tests.support.mcp_app import (
    LEGACY,
    MODERN,
    Collections,
    call,
    deployment,
    initialize,
    result_in,
    serving_mcp,
)
from tests.support.scripted_services import ScriptedInference, ScriptedTools, answer, scripted_services

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens on it
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


async def no_session(server):
    """Wait until no session is open."""
    async with asyncio.timeout(60):
        while server.app.sessions.count:  # noqa: ASYNC110 - a session has no event
            await asyncio.sleep(0.01)


def names_in(response):
    return [tool["name"] for tool in result_in(response)["result"]["tools"]]


async def test_clients_with_a_session_without_one_and_of_the_newer_wire_are_served_at_once(served):
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    async with served() as server:
        session = await server.open_session()
        modern = server.post(LIST | {"params": {"_meta": meta}}, version=MODERN, **{"mcp-method": "tools/list"})
        answers = await asyncio.gather(server.post(LIST, session=session), server.post(LIST), modern)
        assert server.app.sessions.count == 1
    assert len({tuple(names_in(answer)) for answer in answers}) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"host": "localhost:3000", "origin": "http://localhost:3000"}, 200),
        ({"host": "localhost:1"}, 200),
    ],
)
async def test_pages_of_other_hosts_do_not_get_in(served, headers, status):
    async with served() as server:
        assert (await server.post(LIST, **headers)).status_code == status


async def test_a_listed_page_may_call_and_read_the_answers(served):
    page = {"origin": "https://page.example"}
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-protocol-version"}
    async with served(allowed_origins=tuple(page.values())) as server:
        preflight = await server.http.options(server.url, headers={**page, **asks})
        answered = await server.post(LIST, **page)
        refused = await server.http.request("PUT", server.url, headers=page)
        other = await server.http.options(server.url, headers={"origin": "https://evil.example", **asks})
    assert (preflight.status_code, answered.status_code, refused.status_code, other.status_code) == (204, 200, 405, 403)
    for response in (preflight, answered, refused):
        assert response.headers["access-control-allow-origin"] == "https://page.example"
    assert preflight.headers["access-control-allow-headers"] == "mcp-protocol-version"
    assert "mcp-session-id" in answered.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in other.headers


async def test_characters_that_break_line_readers_are_escaped(served):
    text = "a\u2028b\u2029c\x85d"
    async with served(scripted_services(tools=ScriptedTools(result=text))) as server:
        session = await server.open_session()
        answered = await server.post(call("clock"), session=session)
    assert all(character not in answered.text for character in "\u2028\u2029\x85")
    assert result_in(answered)["result"]["content"][0]["text"] == text


async def test_further_hosts_and_origins_are_let_in_by_settings(served):
    async with served(allowed_hosts=("mcp.example",), allowed_origins=("https://page.example",)) as server:
        assert (await server.post(LIST, host="mcp.example:8090")).status_code == 200
        assert (await server.post(LIST, origin="https://page.example")).status_code == 200


@pytest.mark.parametrize(
    ("message", "fields", "status", "words"),
    [
        (b"{", {}, 400, "not JSON"),
        (b"\xff", {}, 400, "not UTF-8"),
        (b"[" * 400 + b"]" * 400, {}, 400, "nested too deeply"),
        (b'"' + b"x" * 2048 + b'"', {}, 413, "more than 1024 bytes"),
        (LIST, {"session": "unknown"}, 404, "Session not found"),
        (b"[]", {}, 400, "alidation"),
    ],
)
async def test_what_is_no_message_is_refused_and_leaves_nothing(served, message, fields, status, words):
    async with served(max_message_bytes=1024) as server:
        refused = await server.post(message, **fields)
        assert (refused.status_code, server.app.sessions.count, server.app.entry.request_count) == (status, 0, 0)
    assert words in refused.json()["error"]["message"]


@pytest.mark.parametrize("message", [initialize() | {"params": {}}, initialize() | {"params": {"capabilities": 1}}])
async def test_a_session_whose_handshake_failed_is_forgotten(served, message):
    async with served() as server:
        assert "error" in result_in(await server.post(message))
        await no_session(server)


async def test_a_handshake_that_wants_no_answer_opens_no_session(served):
    async with served() as server:
        message = initialize()
        del message["id"]
        await server.post(message)
        await no_session(server)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_streams_and_ends_of_sessions_need_a_session(served, method):
    async with served() as server:
        refused = await server.http.request(method, server.url, headers=server.headers())
        assert (refused.status_code, server.app.sessions.count) == (400, 0)
    assert "initialize" in refused.json()["error"]["message"]


async def test_other_methods_and_paths_are_refused(served):
    async with served() as server:
        assert (await server.http.put(server.url)).status_code == 405
        assert (await server.http.get(server.url.removesuffix("/mcp"))).status_code == 404


async def test_one_more_session_than_a_caller_may_open_is_refused(served):
    async with served(max_sessions=4, auth="none") as server:
        first = await server.open_session()
        await server.open_session()
        assert (await server.post(initialize())).status_code == 503
        other = await server.post(initialize(), authorization="Bearer other")
        assert other.status_code == 200
        await server.http.delete(server.url, headers=server.headers(session=first))
        assert (await server.post(initialize())).status_code == 200


async def test_local_callers_may_open_all_sessions(served):
    async with served(max_sessions=3) as server:
        for _ in range(3):
            await server.open_session()
        assert (await server.post(initialize())).status_code == 503


async def test_a_session_that_is_not_used_ends(served):
    async with served(session_idle_s=0.05) as server:
        session = await server.open_session()
        await no_session(server)
        assert (await server.post(PING, session=session)).status_code == 404


async def test_a_session_belongs_to_the_key_that_opened_it(served):
    async with served() as server:
        session = await server.open_session(authorization="Bearer one")
        assert (await server.post(PING, session=session, authorization="Bearer one")).status_code == 200
        for headers in ({"authorization": "Bearer two"}, {}):
            assert (await server.post(PING, session=session, **headers)).status_code == 404
            stolen = await server.http.delete(server.url, headers=server.headers(LEGACY, session, headers))
            assert stolen.status_code == 404
        assert server.app.sessions.count == 1


async def test_a_second_running_request_of_one_id_is_refused_and_the_first_goes_on(served):
    inference = ScriptedInference(None)
    async with served(scripted_services(inference=inference)) as server:
        session = await server.open_session()
        first = asyncio.create_task(server.post(call("ask", {"question": "Wait."}), session=session))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        refused = await server.post(call("clock"), session=session)
        assert refused.status_code == 400
        assert "runs already" in refused.json()["error"]["message"]
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await server.post(cancel, session=session)
        assert "error" in result_in(await asyncio.wait_for(first, 60))


async def test_one_more_request_than_may_run_is_refused(served):
    inference = ScriptedInference(None)
    async with served(scripted_services(inference=inference), max_streams=1) as server:
        waiting = asyncio.create_task(server.post(call("ask", {"question": "Wait."})))
        await asyncio.wait_for(inference.waiting.wait(), 60)
        refused = await server.post(LIST)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        waiting.cancel()
        await asyncio.wait_for(inference.stopped.wait(), 60)


async def test_a_body_that_does_not_arrive_is_given_up(served):
    async def slowly():
        yield b"{"
        await asyncio.sleep(0.5)

    async with served(read_s=0.05) as server:
        refused = await server.http.post(server.url, content=slowly(), headers=server.headers())
        assert refused.status_code == 408


async def test_a_stream_of_a_session_ends_with_the_time_of_a_request(served, monkeypatch):
    monkeypatch.setattr("gateway.mcp.http.app.GRACE_S", 0.0)
    async with served(call_s=0.1) as server:
        session = await server.open_session()
        ended = await server.http.get(server.url, headers=server.headers(session=session))
        assert ended.status_code == 200
        assert server.app.entry.request_count == 0


async def test_a_stream_without_its_result_is_cut_at_the_end_of_its_time(served, monkeypatch):
    monkeypatch.setattr("gateway.mcp.http.app.GRACE_S", -9.5)
    async with served(scripted_services(inference=ScriptedInference(None)), call_s=10) as server:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await server.post(call("ask", {"question": "hi"}))


class LargeChunks(Collections):
    """Has a chunk that is larger than a part of an answer."""

    async def Retrieve(self, request, context):
        return context_pb.RetrieveResponse(chunks=[chunk_pb2.Chunk(id="1", content="x" * 100_000, source="a.txt")])


@asynccontextmanager
async def full_server(tmp_path):
    """Serve large answers with little memory for them."""
    services = scripted_services(inference=ScriptedInference(answer("y" * 100_000)))
    async with deployment(tmp_path, services, collections=LargeChunks()) as world, serving_mcp(world) as server:
        memory = server.app.entry.bodies.memory
        assert memory.begin(None, memory.free - 10_000)
        yield server


def modern(message, method, name):
    """Return a message of the protocol of 2026-07-28, and the headers that it needs."""
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    message["params"]["_meta"] = meta
    return message, {"mcp-method": method, "mcp-name": name}


def read_resource():
    params = {"uri": "pagantic://collections/notes?query=lamp"}
    return {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params}


async def test_an_answer_to_a_read_without_room_is_refused_in_the_form_of_the_protocol(tmp_path):
    message, headers = modern(read_resource(), "resources/read", "pagantic://collections/notes?query=lamp")
    async with full_server(tmp_path) as server:
        refused = await server.post(message, version=MODERN, **headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "share of the memory" in refused.json()["error"]["message"]


@pytest.mark.parametrize("has_session", [False, True])
async def test_an_event_stream_without_room_for_its_result_is_cut(tmp_path, has_session):
    async with full_server(tmp_path) as server:
        session = await server.open_session() if has_session else ""
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await server.post(read_resource(), session=session)


async def test_the_result_of_a_tool_is_sent_without_room(tmp_path):
    message, headers = modern(call("ask", {"question": "hi"}), "tools/call", "ask")
    async with full_server(tmp_path) as server:
        legacy = await server.post(call("ask", {"question": "hi"}))
        later = await server.post(message, version=MODERN, **headers)
    for response in (legacy, later):
        assert (response.status_code, "y" * 100_000 in response.text) == (200, True)


async def test_where_keys_are_asked_for_nobody_gets_in_without_one(served):
    async with served(auth="keys") as server:
        refused = await server.post(initialize())
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert server.app.sessions.count == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": EVERYWHERE}, "set AUTH to keys or none"),
        ({"host": EVERYWHERE, "auth": "keys"}, "set TLS to mesh"),
        ({"auth": "tokens"}, "knows local, none, keys only"),
        ({"tls": "files"}, "knows off, mesh only"),
    ],
)
def test_a_server_that_others_can_reach_says_who_may_call_it(fields, words):
    with pytest.raises(ValueError, match=words):
        McpSettings(**fields)


def test_a_server_behind_a_proxy_may_listen_everywhere():
    assert McpSettings(host=EVERYWHERE, auth="keys", tls="mesh").host == EVERYWHERE
