"""Model Context Protocol servers at addresses, over real sockets: real ones, and ones that misbehave."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import asynccontextmanager, suppress

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.tools.v1 import mcp_pb2
from tests.integration.tools.mcp_service import ROOT, call, mcp_service, said, status, tools, until
from tests.support.mcp_server import TOKEN
from tests.support.ports import free_ports

CONNECTED = mcp_pb2.MCP_SERVER_STATE_CONNECTED
LOST = mcp_pb2.MCP_SERVER_STATE_LOST


@asynccontextmanager
async def server_at(port, *arguments):
    """Run the test server at a port of this machine."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.mcp_server", "--http", str(port), *arguments),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until(lambda: is_listening(port))
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def is_listening(port):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def answering(*replies):
    """Answer every request with the next of these bytes, the last again and again; yields the port and the requests."""
    seen = []
    left = list(replies)

    async def answer(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], seen


@asynccontextmanager
async def clinging():
    """Run a server of an older version that answers everything but the end of its session; yields its port."""
    tool = {"name": "call", "inputSchema": {"type": "object"}}
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "clinging", "version": "1"},
        },
        "tools/list": {"tools": [tool]},
    }

    async def answer(reader, writer):
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                if not head.startswith("POST"):
                    await reader.read()
                request = json.loads(await reader.readexactly(int(length[1])))
                reply = {"jsonrpc": "2.0", "id": request.get("id")}
                if request["method"] in results:
                    reply["result"] = results[request["method"]]
                else:
                    reply["error"] = {"code": -32601, "message": "no such method"}
                text = json.dumps(reply)
                status, body = ("200 OK", text) if "id" in request else ("202 Accepted", "")
                writer.write(
                    f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nmcp-session-id: s1\r\n"
                    f"content-length: {len(body)}\r\n\r\n{body}".encode()
                )
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_server_that_does_not_confirm_the_end_does_not_keep_the_service(tmp_path):
    async with clinging() as port, mcp_service(tmp_path, {"h": at(port)}) as stub:
        assert (await status(stub, "h")).protocol_version == "2025-11-25"
        assert "h_call" in await tools(stub)


def at(port, host="127.0.0.1", **keys):
    return {"url": f"http://{host}:{port}/mcp", **keys}


@pytest.mark.parametrize("form", [[], ["--json"]])
async def test_the_tools_of_an_address_are_listed_and_called(tmp_path, form):
    (port,) = free_ports(1)
    async with server_at(port, *form), mcp_service(tmp_path, {"h": at(port)}) as stub:
        assert (await status(stub, "h")).transport == f"127.0.0.1:{port}"
        assert await said(stub, "h_echo", text="hello") == "hello"
        texts = [f"text {number}" for number in range(200)]
        assert await asyncio.gather(*(said(stub, "h_echo", text=text) for text in texts)) == texts


async def test_a_name_of_the_settings_may_have_a_private_address(tmp_path):
    (port,) = free_ports(1)
    async with server_at(port), mcp_service(tmp_path, {"h": at(port, "localhost")}) as stub:
        assert await said(stub, "h_echo", text="hello") == "hello"


async def test_an_address_that_is_lost_is_connected_again(tmp_path):
    (port,) = free_ports(1)
    connection = {"max_reconnect_s": 0.3, "refresh_s": 1}
    async with mcp_service(tmp_path, {"h": at(port)}, connection=connection) as stub:
        assert (await status(stub, "h")).state == LOST
        for _ in range(2):
            async with server_at(port) as server:
                await until(lambda: is_in(stub, CONNECTED))
                assert await said(stub, "h_echo", text="hello") == "hello"
                waiting = asyncio.create_task(call(stub, "h_wait", seconds=30))
                await asyncio.sleep(0.3)
                server.kill()
                lost = await waiting
                assert lost.error.code == error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN, lost.error.message
            await until(lambda: is_in(stub, LOST))
            assert not (await tools(stub))["h_echo"].available
        assert await said(stub, "calculator", expression="1 + 1") == "2"


async def is_in(stub, state):
    return (await status(stub, "h")).state == state


async def test_a_change_of_the_tools_of_an_address_is_followed(tmp_path):
    (port,) = free_ports(1)
    async with server_at(port), mcp_service(tmp_path, {"h": at(port)}, connection={"refresh_s": 3600}) as stub:
        await said(stub, "h_grow", name="later")

        async def is_there():
            return "h_later" in await tools(stub)

        await until(is_there)


async def test_a_call_of_an_address_that_is_cancelled_is_cancelled_there(tmp_path):
    (port,) = free_ports(1)
    async with server_at(port), mcp_service(tmp_path, {"h": at(port, timeoutSeconds=0.4)}) as stub:
        timed_out = await call(stub, "h_wait", seconds=30)
        assert timed_out.error.code == error_pb2.ERROR_CODE_TOOL_OUTCOME_UNKNOWN

        async def is_cancelled():
            return await said(stub, "h_count_cancelled") == "1"

        await until(is_cancelled)


@pytest.mark.parametrize("form", [[], ["--json"]])
async def test_a_result_over_the_limit_fails_its_call_and_says_why(tmp_path, form):
    (port,) = free_ports(1)
    settings = {"mcp_max_message_bytes": 20_000, "max_result_bytes": 1_000_000}
    async with server_at(port, *form), mcp_service(tmp_path, {"h": at(port)}, **settings) as stub:
        failed = await call(stub, "h_big", size_bytes=30_000)
        assert failed.error.code == error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED
        assert "20000 byte" in failed.error.message
        assert await said(stub, "h_big", size_bytes=5_000) == "x" * 5_000


async def test_a_body_without_end_does_not_fill_the_memory(tmp_path):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n"
    async with (
        answering(head + chunk) as (port, _),
        mcp_service(tmp_path, {"h": at(port)}, mcp_max_message_bytes=4096) as stub,
    ):
        assert "more than 4096 bytes" in (await status(stub, "h")).reason


async def test_a_compressed_body_is_refused(tmp_path):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx"
    async with answering(head) as (port, seen), mcp_service(tmp_path, {"h": at(port)}) as stub:
        assert "compresses its answers" in (await status(stub, "h")).reason
        assert b"accept-encoding: identity" in seen[0].lower()


async def test_a_redirect_to_another_host_is_not_followed(tmp_path):
    async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as (other, seen):
        head = f"HTTP/1.1 307 Temporary\r\nlocation: http://127.0.0.1:{other}/\r\ncontent-length: 0\r\n\r\n"
        async with answering(head.encode()) as (port, _), mcp_service(tmp_path, {"h": at(port)}) as stub:
            assert "not followed" in (await status(stub, "h")).reason
        assert not seen


async def test_an_authorization_server_that_is_not_allowed_is_not_asked(tmp_path):
    async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as (other, seen):
        metadata = f"http://127.0.0.1:{other}/meta"
        head = (
            f'HTTP/1.1 401 No\r\nwww-authenticate: Bearer resource_metadata="{metadata}"\r\ncontent-length: 0\r\n\r\n'
        )
        oauth = {"clientId": "c", "clientSecret": "s", "issuer": "http://127.0.0.1:1"}
        async with (
            answering(head.encode()) as (port, _),
            mcp_service(tmp_path, {"h": at(port, oauth=oauth)}) as stub,
        ):
            assert f"host '127.0.0.1:{other}' is not allowed" in (await status(stub, "h")).reason
        assert not seen


@asynccontextmanager
async def issuing(token):
    """Run an authorization server that gives one token; yields its URL and what it was asked."""
    seen = []

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        seen.append(head + (await reader.readexactly(int(length[1])) if length else b"").decode())
        body = {"access_token": token, "token_type": "Bearer"}
        if head.startswith("GET"):
            body = {
                "issuer": url,
                "authorization_endpoint": f"{url}/authorize",
                "token_endpoint": f"{url}/token",
                "response_types_supported": ["code"],
            }
        text = json.dumps(body)
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield url, seen


async def test_a_server_that_asks_for_a_token_gets_one_of_the_clients_own(tmp_path):
    (port,) = free_ports(1)
    async with issuing(TOKEN) as (issuer, seen), server_at(port, "--issuer", issuer):
        oauth = {"clientId": "c", "clientSecret": "s3cret", "issuer": issuer}
        async with mcp_service(tmp_path, {"h": at(port, oauth=oauth)}) as stub:
            assert await said(stub, "h_echo", text="hello") == "hello"
            texts = [str(number) for number in range(20)]
            assert await asyncio.gather(*(said(stub, "h_echo", text=text) for text in texts)) == texts
    (asked,) = [request for request in seen if request.startswith("POST /token")]
    assert "grant_type=client_credentials" in asked


async def test_a_token_that_is_refused_is_the_reason(tmp_path):
    (port,) = free_ports(1)
    async with issuing("another") as (issuer, _), server_at(port, "--issuer", issuer):
        oauth = {"clientId": "c", "clientSecret": "s3cret", "issuer": issuer}
        async with mcp_service(tmp_path, {"h": at(port, oauth=oauth)}) as stub:
            server = await status(stub, "h")
    assert server.state == LOST
    assert "s3cret" not in str(server)


async def test_headers_of_the_settings_are_sent_and_not_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_TEST", "s3cret")
    servers = {"h": {"url": "http://127.0.0.1:1/", "headers": {"authorization": "Bearer ${TOKEN_OF_TEST}"}}}
    async with answering(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n") as (port, seen):
        servers["h"]["url"] = f"http://127.0.0.1:{port}/mcp?key=hidden"
        async with mcp_service(tmp_path, servers) as stub:
            listed = str(await status(stub, "h"))
    assert b"authorization: bearer s3cret" in seen[0].lower()
    assert "s3cret" not in listed
    assert "hidden" not in listed
