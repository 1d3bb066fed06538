"""What every session of a Model Context Protocol server does: the scripted one, and the SDK's with a real program."""

import asyncio
import sys

import pytest

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolFailed
from services.tools.adapters.mcp.opening import SessionLimits, SessionOpener
from services.tools.core.servers import ProgramTransport, ServerSpec
from services.tools.ports import ServerLost
from tests.support.scripted_mcp import ScriptedServer, offered
from tests.support.service_process import ROOT


@pytest.fixture(params=["scripted", "sdk"])
async def opened(request):
    """Return a function that opens the same server, whichever it is."""
    argv = (sys.executable, "-m", "tests.support.mcp_server", "--only", "echo", "fail", "wait", "crash", "grow")
    spec = ServerSpec("t", ProgramTransport(argv, folder=str(ROOT)))
    if request.param == "sdk":
        return lambda: SessionOpener(SessionLimits()).open(spec)
    server = ScriptedServer(*(offered(name) for name in ("echo", "fail", "wait", "crash", "grow")))

    return lambda: server.open(spec)


async def test_tools_are_listed_under_the_servers_own_names(opened):
    async with opened() as session:
        assert {tool.name for tool in (await session.list_tools()).tools} >= {"echo", "fail", "wait"}
        assert session.protocol_version == "2026-07-28"


async def test_a_call_returns_text(opened):
    async with opened() as session:
        assert await session.call_tool("echo", {"text": "hello"}, lambda _: None) == "hello"


async def test_a_failed_call_raises_tool_failed_and_the_session_goes_on(opened):
    async with opened() as session:
        with pytest.raises(ToolFailed):
            await session.call_tool("fail", {"reason": "no"}, lambda _: None)
        assert await session.call_tool("echo", {"text": "on"}, lambda _: None) == "on"


async def test_a_call_can_be_cancelled_and_reports_its_progress(opened):
    reports = []
    has_report = asyncio.Event()

    def report(progress):
        reports.append(progress)
        has_report.set()

    async with opened() as session:
        calling = asyncio.create_task(session.call_tool("wait", {"seconds": 30}, report))
        await has_report.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert reports[0].progress == 0
        assert await session.call_tool("echo", {"text": "on"}, lambda _: None) == "on"


async def test_a_resource_is_read_and_an_unknown_one_refused(opened):
    async with opened() as session:
        (note,) = await session.read_resource("test://note")
        assert note.data == "remember"
        with pytest.raises(InvalidRequest):
            await session.read_resource("test://other")


async def test_a_prompt_is_filled_in(opened):
    async with opened() as session:
        filled = await session.get_prompt("greet", {"name": "Ada"})
        assert [(message.role, message.content) for message in filled.messages] == [("user", "Say hello to Ada.")]


async def test_a_session_that_was_closed_is_lost(opened):
    async with opened() as session:
        pass
    for asked in (session.list_tools(), session.wait_for_change(), session.call_tool("echo", {}, lambda _: None)):
        with pytest.raises(ServerLost):
            await asked
