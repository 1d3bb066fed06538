"""The stdio transport, as clients start it: `pagantic mcp`."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.support.mcp_app import MODERN, deployment, initialize
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

COMMAND = [sys.executable, "-m", "gateway.cli.main", "mcp"]


@pytest.fixture
def world(tmp_path):
    @asynccontextmanager
    async def serve(*outputs):
        inference = ScriptedInference(*outputs)
        async with deployment(tmp_path, scripted_services(inference=inference)) as running:
            environment = dict(os.environ) | {
                "PAGANTIC_ADDRESS": running.address,
                "PAGANTIC_MCP_MAX_MESSAGE_BYTES": "4096",
                "PAGANTIC_STATE": str(tmp_path),
            }
            yield environment, inference

    return serve


@asynccontextmanager
async def started(environment):
    """Start the command, and give a function that sends a line and reads the answer."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)

    async def send(message):
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        process.stdin.write(line + b"\n")
        return json.loads(await asyncio.wait_for(process.stdout.readline(), 20))

    try:
        yield process, send
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_starts_the_server_and_calls_a_tool(world, mode):
    async with world(answer("It is noon.")) as (environment, _inference):
        parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=environment)
        async with Client(stdio_client(parameters), mode=mode) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool("ask", {"question": "What time is it?"})
    assert tools[-1] == "clock"
    assert result.content[0].text == "It is noon."


async def test_lines_that_are_no_message_are_answered_and_the_next_one_is_served(world):
    async with world() as (environment, _inference), started(environment) as (_process, send):
        broken = await send(b"{")
        large = await send(b'"' + b"x" * 100_000 + b'"')
        opened = await send(initialize())
    assert "not JSON" in broken["error"]["message"]
    assert "more than 4096 bytes" in large["error"]["message"]
    assert opened["result"]["serverInfo"]["name"] == "pagantic"


async def test_a_client_that_closes_the_streams_ends_the_server_and_its_executions(world):
    async with world(None) as (environment, inference), started(environment) as (process, send):
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "progressToken": 1,
        }
        params = {"name": "ask", "arguments": {"question": "Wait."}, "_meta": meta}
        progress = await send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 20) == 0
        await asyncio.wait_for(inference.stopped.wait(), 60)
    assert progress["method"] == "notifications/progress"
