"""The list of tools crosses the wire and is converted once for each of its revisions."""

from contextlib import asynccontextmanager

import pytest

from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.domain.errors import ErrorCode, NotFound
from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.testing.clock import FakeClock
from pagantic_common.testing.server import serving
from services.orchestrator.adapters.grpc_tools import MAX_CACHED_LISTS, GrpcTools
from services.tools.app.connection import ConnectionLimits
from services.tools.app.execution import ExecutionLimits, ToolExecutor
from services.tools.app.registry import ToolRegistry
from services.tools.app.servers import McpServers
from services.tools.servicer import ToolServicer
from tests.support.doors import open_to_all

SERVICE = "pagantic.tools.v1.ToolService"


class Lamp:
    """A tool that may be away."""

    def __init__(self, name="lamp"):
        self.definition = ToolDefinition(name, "Lights up.", '{"type":"object"}')
        self.unavailable_reason = ""


@asynccontextmanager
async def listing(registry):
    clock = FakeClock()
    servers = McpServers(registry, None, None, ConnectionLimits(), clock=clock)
    servicer = ToolServicer(registry, ToolExecutor(registry, clock, ExecutionLimits()), servers, clock)
    registration = Registration(
        SERVICE, lambda server: pb_grpc.add_ToolServiceServicer_to_server(servicer, server), open_to_all(SERVICE)
    )
    async with serving([registration]) as (channel, _):
        yield GrpcTools(channel, 5.0)


async def test_a_list_that_did_not_change_consists_of_the_same_objects():
    async with listing(ToolRegistry([Lamp()])) as tools:
        first, second = await tools.list_tools([]), await tools.list_tools([])
        named = await tools.list_tools(["lamp"])
        assert first == second == named
        assert first is not second, "a caller may change its own list"
        assert first[0] is second[0]
        assert (await tools.list_tools(["lamp"]))[0] is named[0]


async def test_a_change_of_the_tools_or_of_their_availability_is_seen_at_once():
    lamp, registry = Lamp(), ToolRegistry()
    registry.register(lamp)
    async with listing(registry) as tools:
        assert [tool.is_available for tool in await tools.list_tools([])] == [True]
        lamp.unavailable_reason = "it is dark"
        assert [tool.unavailable_reason for tool in await tools.list_tools([])] == ["it is dark"]
        lamp.unavailable_reason = ""
        assert [tool.is_available for tool in await tools.list_tools([])] == [True]
        registry.replace("server", [Lamp("other")])
        assert [tool.definition.name for tool in await tools.list_tools([])] == ["lamp", "other"]
        assert len(await tools.list_tools(["other"])) == 1
        registry.replace("server", [])
        assert [tool.definition.name for tool in await tools.list_tools([])] == ["lamp"]
        with pytest.raises(NotFound) as unknown:
            await tools.list_tools(["other"])
        assert unknown.value.code is ErrorCode.TOOL_NOT_FOUND


async def test_the_revision_of_a_service_means_nothing_to_its_successor():
    async with listing(ToolRegistry([Lamp()])) as before, listing(ToolRegistry([Lamp("other")])) as after:
        await before.list_tools([])
        after._listed = before._listed
        assert [tool.definition.name for tool in await after.list_tools([])] == ["other"]


async def test_lists_of_many_names_take_bounded_memory():
    registry = ToolRegistry([Lamp(f"lamp{number}") for number in range(MAX_CACHED_LISTS + 2)])
    async with listing(registry) as tools:
        for number in range(MAX_CACHED_LISTS + 2):
            await tools.list_tools([f"lamp{number}"])
        assert len(tools._listed) == 2
