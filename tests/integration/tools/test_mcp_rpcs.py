"""Registering Model Context Protocol servers, and their resources and prompts, over a real socket."""

from __future__ import annotations

import asyncio
import sys

import grpc
import pytest

from pagantic.tools.v1 import tools_service_pb2 as pb
from tests.integration.tools.mcp_service import ROOT, hostile, mcp_service, program, said, status, tools, until
from tests.integration.tools.test_mcp_addresses import server_at
from tests.integration.tools.test_mcp_programs import children
from tests.support.ports import free_ports

ARGV = [sys.executable, "-m", "tests.support.mcp_server"]
Code = grpc.StatusCode


@pytest.fixture(autouse=True)
def _in_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def register(stub, *argv, name="r", **fields):
    request = pb.RegisterMcpServerRequest(name=name, command=pb.McpCommand(argv=argv), **fields)
    return stub.RegisterMcpServer(request)


async def refusal(calling):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await calling
    return raised.value.code(), raised.value.details()


async def test_a_program_is_registered_and_removed(tmp_path):
    async with mcp_service(tmp_path, mcp_programs=(f"{sys.executable} -m tests.support.mcp_server",)) as stub:
        reply = await register(stub, *ARGV, "--only", "echo")
        assert [tool.definition.name for tool in reply.tools] == ["r_echo"]
        assert (reply.tools[0].available, reply.tools[0].origin) == (True, "mcp server r")
        assert await said(stub, "r_echo", text="hello") == "hello"
        code, words = await refusal(register(stub, *ARGV))
        assert code is Code.ALREADY_EXISTS, words
        await stub.RemoveMcpServer(pb.RemoveMcpServerRequest(name="r"))
        assert "r_echo" not in await tools(stub)
        assert not children("--only")
        assert (await register(stub, *ARGV, "--only", "echo", trust_annotations=True)).tools
        code, words = await refusal(stub.RemoveMcpServer(pb.RemoveMcpServerRequest(name="other")))
        assert code is Code.NOT_FOUND
        assert "registered are 'r'" in words


async def test_an_address_is_registered(tmp_path):
    (port,) = free_ports(1)
    async with server_at(port), mcp_service(tmp_path, mcp_hosts=(f"127.0.0.1:{port}",)) as stub:
        await stub.RegisterMcpServer(pb.RegisterMcpServerRequest(name="r", url=f"http://127.0.0.1:{port}/mcp"))
        assert await said(stub, "r_echo", text="hello") == "hello"


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"command": pb.McpCommand(argv=["sh", "-c", "true"])}, Code.FAILED_PRECONDITION, "add it to MCP_PROGRAMS"),
        ({"command": pb.McpCommand(argv=["cat", "x"])}, Code.FAILED_PRECONDITION, "add it to MCP_PROGRAMS"),
        ({"command": pb.McpCommand(argv=["cat", "-"])}, Code.UNAVAILABLE, "cannot be connected"),
        ({"command": pb.McpCommand()}, Code.INVALID_ARGUMENT, "begin with a program"),
        ({"url": "http://example.com/mcp"}, Code.FAILED_PRECONDITION, "add it to MCP_HOSTS"),
        ({"url": "http://127.0.0.1:2/mcp"}, Code.FAILED_PRECONDITION, "add it to MCP_HOSTS"),
        ({"url": "http://127.0.0.1:1/mcp"}, Code.UNAVAILABLE, "All connection attempts failed"),
        ({"url": "http://localhost:3/mcp"}, Code.UNAVAILABLE, "has the private address"),
        ({"url": "file:///etc/passwd"}, Code.INVALID_ARGUMENT, "must begin with http"),
        ({"url": "http://user:secret@localhost/"}, Code.INVALID_ARGUMENT, "no user or password"),
        ({}, Code.INVALID_ARGUMENT, "give a command or a url"),
        ({"name": "a b", "url": "http://localhost:1/"}, Code.INVALID_ARGUMENT, "server name 'a b'"),
    ],
)
async def test_a_server_that_may_not_be_registered_is_refused_and_not_kept(tmp_path, fields, code, reason):
    settings = {"mcp_programs": ("cat -",), "mcp_hosts": ("127.0.0.1:1", "localhost:3")}
    async with mcp_service(tmp_path, limits={"request_timeout_s": 2}, **settings) as stub:
        refused, words = await refusal(stub.RegisterMcpServer(pb.RegisterMcpServerRequest(**{"name": "r", **fields})))
        assert (refused, reason in words) == (code, True), words
        assert "secret" not in words
        assert not (await stub.ListMcpServers(pb.ListMcpServersRequest())).servers


async def test_no_more_servers_are_kept_than_the_limit(tmp_path):
    settings = {"mcp_programs": (sys.executable,), "limits": {"max_servers": 1}}
    async with mcp_service(tmp_path, {"a": program()}, **settings) as stub:
        code, words = await refusal(register(stub, *ARGV))
        assert code is Code.FAILED_PRECONDITION
        assert "at most 1" in words


async def test_a_caller_that_leaves_leaves_no_server(tmp_path):
    async with mcp_service(tmp_path, mcp_programs=(sys.executable,)) as stub:
        registering = register(stub, *ARGV, "--sleep", "30")
        await asyncio.sleep(0.3)
        registering.cancel()

        async def is_gone():
            return not (await stub.ListMcpServers(pb.ListMcpServersRequest())).servers and not children("--sleep")

        await until(is_gone)


async def test_resources_are_listed_and_read(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        listed = await stub.ListMcpResources(pb.ListMcpResourcesRequest(server="t"))
        assert {(one.uri, one.mime_type) for one in listed.resources} == {
            ("test://note", "text/plain"),
            ("test://picture", "image/png"),
        }
        (note,) = (await stub.ReadMcpResource(pb.ReadMcpResourceRequest(server="t", uri="test://note"))).contents
        assert note.text == "remember"
        (picture,) = (await stub.ReadMcpResource(pb.ReadMcpResourceRequest(server="t", uri="test://picture"))).contents
        assert picture.blob == b"\x89PNG"
        code, words = await refusal(stub.ReadMcpResource(pb.ReadMcpResourceRequest(server="t", uri="test://other")))
        assert (code, "refuses" in words) == (Code.INVALID_ARGUMENT, True)


async def test_prompts_are_listed_and_filled_in(tmp_path):
    async with mcp_service(tmp_path, {"t": program()}) as stub:
        (greet,) = (await stub.ListMcpPrompts(pb.ListMcpPromptsRequest(server="t"))).prompts
        assert (greet.name, [(one.name, one.required) for one in greet.arguments]) == ("greet", [("name", True)])
        filled = await stub.GetMcpPrompt(pb.GetMcpPromptRequest(server="t", name="greet", arguments={"name": "Ada"}))
        assert [(one.role, one.content) for one in filled.messages] == [("user", "Say hello to Ada.")]


async def test_requests_of_a_server_that_is_not_there_are_refused(tmp_path):
    async with mcp_service(tmp_path, {"t": {"command": "no-such-program"}, "h": hostile("hangs")}) as stub:
        for name, code in (("t", Code.UNAVAILABLE), ("x", Code.NOT_FOUND), ("h", Code.INVALID_ARGUMENT)):
            refused, _ = await refusal(stub.ListMcpPrompts(pb.ListMcpPromptsRequest(server=name)))
            assert refused is code
        assert "is not found" in (await status(stub, "t")).reason
