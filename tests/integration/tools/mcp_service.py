"""The tools service with Model Context Protocol servers, for tests."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from pagantic.common.v1 import message_pb2
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.process.server import start_server
from services.tools.__main__ import open_app
from services.tools.app.connection import ConnectionLimits
from services.tools.settings import ToolsSettings
from services.tools.wiring import SourceLimits

ROOT = Path(__file__).parents[3]
PATIENCE_S = 20


def program(*arguments, module="tests.support.mcp_server", **keys):
    """Return the entry of a program in a servers file."""
    return {"command": sys.executable, "args": ["-m", module, *arguments], "cwd": str(ROOT), **keys}


def hostile(habit, **keys):
    return program(habit, module="tests.support.hostile_mcp_server", **keys)


@asynccontextmanager
async def mcp_service(folder, servers=None, *, connection=None, limits=None, **settings):
    """Run the service with these servers in its file, limits of their connections and others, and yield a stub."""
    if servers is not None:
        path = folder / "servers.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        settings["mcp_servers"] = path
    settings = ToolsSettings(port=0, **settings)
    limits = SourceLimits(ConnectionLimits(**{"reconnect_s": 0.05, **(connection or {})}), **(limits or {}))
    async with open_app(settings, limits) as registrations:
        server, _, port = await start_server(settings, registrations)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield pb_grpc.ToolServiceStub(channel)
        await server.stop(None)


async def call(stub, name, /, timeout_s=None, **arguments):
    called = message_pb2.ToolCall(id="c1", name=name, arguments_json=json.dumps(arguments))
    return await stub.ExecuteTool(pb.ExecuteToolRequest(call=called), timeout=timeout_s)


async def said(stub, name, /, **arguments):
    """Return the result of a call that must succeed."""
    reply = await call(stub, name, **arguments)
    assert not reply.result.is_error, reply.result.content
    return reply.result.content


async def tools(stub):
    return {tool.definition.name: tool for tool in (await stub.ListTools(pb.ListToolsRequest())).tools}


async def status(stub, name):
    listed = await stub.ListMcpServers(pb.ListMcpServersRequest())
    return {server.name: server for server in listed.servers}[name]


async def until(is_so):
    """Wait until an asynchronous predicate holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110 - as a caller would
            await asyncio.sleep(0.02)
