"""The tools service over a real socket."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.codec.messages import duration_to_proto
from pagantic_common.domain.errors import ErrorCode
from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.server import start_server
from pagantic_common.rpc.status import restore_error
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.workers.thread_workers import ThreadWorkers
from services.tools.adapters.builtin.computing import computing_tools
from services.tools.adapters.mcp.opening import SessionLimits, SessionOpener
from services.tools.app.connection import ConnectionLimits
from services.tools.app.execution import ExecutionLimits, ToolExecutor
from services.tools.app.registry import ToolRegistry
from services.tools.app.servers import Admission, McpServers
from services.tools.servicer import ToolServicer
from services.tools.settings import ToolsSettings
from tests.support.doors import open_to_all


class SleepingTool:
    """Sleeps until it is stopped."""

    definition = ToolDefinition("sleeper", "", '{"type": "object"}')
    unavailable_reason = ""
    is_remote = False
    places = None

    def __init__(self):
        self.stopped = asyncio.Event()

    async def run(self, _arguments, _report):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.stopped.set()
            raise


@pytest.fixture
def sleeper():
    return SleepingTool()


@pytest.fixture
async def tools(sleeper):
    clock = SystemClock()
    registry = ToolRegistry([*computing_tools(clock, ThreadWorkers()), sleeper])
    opener = SessionOpener(SessionLimits())
    servers = McpServers(registry, opener.open, Admission(), ConnectionLimits(), clock=clock)
    servicer = ToolServicer(registry, ToolExecutor(registry, clock, ExecutionLimits()), servers, clock)
    registration = Registration(
        "pagantic.tools.v1.ToolService",
        lambda server: pb_grpc.add_ToolServiceServicer_to_server(servicer, server),
        open_to_all("pagantic.tools.v1.ToolService"),
    )
    server, _, port = await start_server(ToolsSettings(port=0), [registration])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield pb_grpc.ToolServiceStub(channel)
    await server.stop(None)


def request(name, arguments_json="{}", timeout_s=None, call_id="c1"):
    return pb.ExecuteToolRequest(
        call=message_pb2.ToolCall(id=call_id, name=name, arguments_json=arguments_json),
        timeout=None if timeout_s is None else duration_to_proto(timeout_s),
    )


async def test_builtin_tools_are_listed_by_name_and_available(tools):
    reply = await tools.ListTools(pb.ListToolsRequest())
    assert [tool.definition.name for tool in reply.tools] == ["calculator", "clock", "json_query", "sleeper"]
    assert all(tool.available for tool in reply.tools)
    assert reply.tools[0].definition.safety == message_pb2.TOOL_SAFETY_NONE
    assert reply.tools[1].definition.safety == message_pb2.TOOL_SAFETY_READ


async def test_listing_an_unknown_name_is_not_found(tools):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await tools.ListTools(pb.ListToolsRequest(names=["clock", "calc"]))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert restore_error("tools", raised.value).code is ErrorCode.TOOL_NOT_FOUND


async def test_calculator_computes(tools):
    reply = await tools.ExecuteTool(request("calculator", '{"expression": "17 * 23"}'))
    assert (reply.result.call_id, reply.result.content, reply.result.is_error) == ("c1", "391", False)
    assert not reply.HasField("error")
    assert reply.attempts == 1
    assert reply.duration.ToNanoseconds() > 0


@pytest.mark.parametrize(
    ("name", "arguments_json", "code", "problem"),
    [
        ("calculatr", "{}", error_pb2.ERROR_CODE_TOOL_NOT_FOUND, "did you mean 'calculator'"),
        ("calculator", "{}", error_pb2.ERROR_CODE_TOOL_INVALID_ARGUMENTS, "argument 'expression' is missing"),
        ("calculator", "not json", error_pb2.ERROR_CODE_TOOL_INVALID_ARGUMENTS, "not JSON"),
        ("calculator", '{"expression": "1/0"}', error_pb2.ERROR_CODE_TOOL_EXECUTION_FAILED, "division by zero"),
    ],
)
async def test_failed_call_is_a_normal_reply(tools, name, arguments_json, code, problem):
    reply = await tools.ExecuteTool(request(name, arguments_json))
    assert reply.error.code == code
    assert reply.error.category == error_pb2.ERROR_CATEGORY_TOOL_FAILURE
    assert reply.result.is_error
    assert problem in reply.result.content


async def test_request_timeout_is_told_and_stops_the_tool(tools, sleeper):
    reply = await tools.ExecuteTool(request("sleeper", timeout_s=0.05), timeout=10)
    assert reply.error.code == error_pb2.ERROR_CODE_TOOL_TIMEOUT
    assert sleeper.stopped.is_set()


async def test_grpc_deadline_stops_the_tool(tools, sleeper):
    await tools.ListTools(pb.ListToolsRequest())  # connected: the deadline is the tool's alone
    try:  # whether the reply or the deadline comes first is a race
        reply = await tools.ExecuteTool(request("sleeper"), timeout=0.5)
        code = reply.error.code
    except grpc.aio.AioRpcError as error:
        code = error.code()
    assert code in (error_pb2.ERROR_CODE_TOOL_TIMEOUT, grpc.StatusCode.DEADLINE_EXCEEDED)
    async with asyncio.timeout(60):
        await sleeper.stopped.wait()


@pytest.mark.parametrize(
    "bad", [pb.ExecuteToolRequest(), request("clock", call_id="a b"), request("clock", timeout_s=-1)]
)
async def test_malformed_request_is_invalid_argument(tools, bad):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await tools.ExecuteTool(bad)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(10, -2147483648), (-1, 0), (0, -1), (1, 10**9), (86_401, 0), (2**62, 0)]
)
async def test_a_timeout_that_is_none_is_refused(tools, seconds, nanos):
    asked = request("clock")
    asked.timeout.seconds, asked.timeout.nanos = seconds, nanos
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await tools.ExecuteTool(asked)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "between 0 and 86400 s" in raised.value.details()


async def test_tools_are_found_by_words_among_those_that_are_named(tools):
    found = await tools.SearchTools(pb.SearchToolsRequest(query="What time is it in Berlin, in JSON?"))
    assert found.tools[0].tool.definition.name == "clock"
    assert found.tools[0].tool.available
    assert [one.score for one in found.tools] == sorted((one.score for one in found.tools), reverse=True)
    named = await tools.SearchTools(pb.SearchToolsRequest(query="time JSON", names=["json_query", "gone"], limit=5))
    assert [one.tool.definition.name for one in named.tools] == ["json_query"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tools.SearchTools(pb.SearchToolsRequest(limit=101))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
