"""How a server is kept connected, with a scripted server and a fake clock."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Conflict, ErrorCode, NotFound, Unavailable
from pagantic_common.domain.messages import ToolCall, ToolDefinition, ToolSafety
from pagantic_common.testing.clock import FakeClock
from services.tools.app.connection import ConnectionLimits
from services.tools.app.execution import ExecutionLimits, ToolExecutor
from services.tools.app.registry import ToolRegistry
from services.tools.app.servers import Admission, McpServers
from services.tools.core.allowlists import ProgramAllowlist
from services.tools.core.servers import OfferedTool, ProgramTransport, ServerSpec, ServerState
from services.tools.ports import ServerLost
from tests.support.scripted_mcp import OBJECT, ScriptedServer, offered

ALLOWED = Admission(ProgramAllowlist((("server",),)))


class FakeTool:
    """A tool of 60 bytes or so."""

    unavailable_reason = ""
    is_remote = False
    places = None

    def __init__(self, name):
        self.definition = ToolDefinition(name, "x" * 50, OBJECT)


class World:
    """A registry with servers, and calls of its tools."""

    def __init__(self, server, **limits):
        self.clock = FakeClock()
        self.registry = ToolRegistry()
        self.limits = ConnectionLimits(**limits)
        self.servers = McpServers(
            self.registry, server.open, ALLOWED, self.limits, clock=self.clock, chance=lambda: 0.0
        )
        self._executor = ToolExecutor(self.registry, self.clock, ExecutionLimits(max_retries=0))

    async def call(self, name, arguments="{}"):
        return await self._executor.execute(ToolCall("c1", name, arguments), Deadline.after(0, 1e9))

    def status(self, name="s"):
        return {status.name: status for status in self.servers.statuses()}[name]

    def names(self):
        return [tool.definition.name for tool in self.registry.list_named()]


def spec(name="s", **fields):
    return ServerSpec(name, ProgramTransport(("server",)), **fields)


@asynccontextmanager
async def world(server, *specs, **limits):
    made = World(server, **limits)
    await made.servers.start(specs or [spec()])
    try:
        yield made
    finally:
        await made.servers.close()


async def until(is_so):
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError


async def test_tools_of_a_server_are_registered_and_called():
    async with world(ScriptedServer(offered("echo"))) as w:
        assert w.names() == ["s_echo"]
        assert (await w.call("s_echo", '{"text": "a"}')).result.content == "a"
        assert w.status().state is ServerState.CONNECTED


async def test_a_change_replaces_the_tools_as_one():
    server = ScriptedServer(offered("a"), offered("b"))
    async with world(server) as w:
        server.change(offered("b"), offered("c"))
        await until(lambda: w.names() == ["s_b", "s_c"])


async def test_a_tool_with_a_defect_is_left_out_with_the_reason():
    broken = OfferedTool("broken", "", "{}", defect="it has no schema")
    async with world(ScriptedServer(broken, offered("a"), offered("b"))) as w:
        assert w.names() == ["s_a", "s_b"]
        assert w.status().left_out == {"s_broken": "it has no schema"}


async def test_safety_is_external_unless_the_server_is_trusted():
    server = ScriptedServer(offered("a", is_read_only=True))
    async with world(server, spec("s"), spec("t", trusts_annotations=True)) as w:
        safety = {tool.definition.name: tool.definition.safety for tool in w.registry.list_named()}
        assert safety == {"s_a": ToolSafety.EXTERNAL, "t_a": ToolSafety.READ}


async def test_a_lost_server_keeps_its_tools_which_cannot_be_called_until_it_is_back():
    server = ScriptedServer(offered("echo"), offered("wait"))
    async with world(server) as w:
        waiting = asyncio.create_task(w.call("s_wait"))
        await asyncio.sleep(0)
        server.go_down()
        lost = await waiting
        assert lost.failure.code is ErrorCode.TOOL_OUTCOME_UNKNOWN
        assert "was lost during the call: it went down" in lost.failure.message
        await until(lambda: w.status().state is ServerState.LOST)
        assert w.names() == ["s_echo", "s_wait"]
        refused = await w.call("s_echo")
        assert (refused.failure.code, refused.attempts) == (ErrorCode.TOOL_UNAVAILABLE, 0)
        reason = "its server 's' is not connected"
        assert refused.failure.message == f"tool 's_echo' is not available: {reason}"
        assert {tool.unavailable_reason for tool in w.registry.list_named()} == {reason}
        with pytest.raises(Unavailable, match="is not connected: it"):
            w.servers.session_of("s")
        server.is_up = True
        await until(lambda: w.status().state is ServerState.CONNECTED)
        assert not (await w.call("s_echo")).failure


async def test_a_server_is_removed_even_if_its_session_cannot_be_closed():
    server = ScriptedServer(offered("echo"))

    @asynccontextmanager
    async def open_session(given):
        try:
            async with server.open(given) as session:
                yield session
        finally:
            raise ServerLost("it cannot be closed")

    w = World(server)
    w.servers = McpServers(w.registry, open_session, ALLOWED, w.limits, clock=w.clock)
    await w.servers.register(spec())
    async with asyncio.timeout(60):
        await w.servers.remove("s")
    assert not w.servers.statuses()


async def test_waits_between_attempts_grow_to_the_limit():
    server = ScriptedServer()
    server.is_up = False
    waits = []
    w = World(server, reconnect_s=1, max_reconnect_s=5)

    async def sleep(seconds):
        waits.append(seconds)
        await asyncio.sleep(0)

    w.clock.sleep = sleep
    await w.servers.start([spec()])
    await until(lambda: len(waits) > 5)
    await w.servers.close()
    assert waits[:5] == [1, 2, 4, 5, 5]


async def test_tools_over_the_limits_are_left_out_with_the_reason():
    server = ScriptedServer(offered("a"), offered("b", "x" * 200), offered("a.b"), offered("a/b"), offered("c"))
    server.others = {"and 3 more": "not read"}
    async with world(server, max_tools=2, max_tool_bytes=100) as w:
        assert w.names() == ["s_a", "s_a_b"]
        reasons = w.status().left_out
        assert set(reasons) == {"s_b", "s_a_b (listed again)", "s_c", "and 3 more"}
        assert "raise MCP_MAX_TOOLS" in reasons["s_c"]
        assert "at most 100" in reasons["s_b"]


async def test_a_name_of_another_source_is_not_taken():
    w = World(ScriptedServer(offered("b_c"), offered("d")))
    w.registry.register(FakeTool("a_b_c"))
    await w.servers.start([spec("a")])
    assert w.names() == ["a_b_c", "a_d"]
    assert w.status("a").left_out == {"a_b_c": "a tool named 'a_b_c' is registered already"}
    await w.servers.remove("a")
    assert w.names() == ["a_b_c"]


async def test_more_calls_than_the_limit_wait():
    server = ScriptedServer(offered("wait"), offered("echo"))
    async with world(server, max_calls=1) as w:
        waiting = asyncio.create_task(w.call("s_wait"))
        await asyncio.sleep(0)
        second = asyncio.create_task(w.call("s_echo", '{"text": "a"}'))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        waiting.cancel()
        assert (await second).result.content == "a"
        assert server.sessions[0].cancelled == ["wait"]


async def test_a_server_is_registered_once_and_removed_with_its_tools():
    server = ScriptedServer(offered("echo"))
    w = World(server)
    assert [tool.definition.name for tool in await w.servers.register(spec())] == ["s_echo"]
    with pytest.raises(Conflict):
        await w.servers.register(spec())
    await w.servers.remove("s")
    assert not w.names()
    assert (await w.servers.register(spec()))[0].unavailable_reason == ""
    await w.servers.close()
    with pytest.raises(NotFound):
        await w.servers.remove("s")


async def test_a_server_that_cannot_be_registered_is_not_kept():
    server = ScriptedServer()
    server.is_up = False
    w = World(server)
    with pytest.raises(Unavailable, match="it is down"):
        await w.servers.register(spec())
    assert not w.servers.statuses()


def test_tools_of_all_sources_fit_into_one_list():
    tools = [FakeTool(f"t{number}") for number in range(10)]
    registry = ToolRegistry(max_bytes=300)
    left_out = registry.replace("a", tools)
    assert 0 < len(left_out) < 10
    assert registry.replace("b", [FakeTool("u")]).keys() == {"u"}
    registry.replace("a", [])
    assert not registry.replace("b", [FakeTool("u")])
