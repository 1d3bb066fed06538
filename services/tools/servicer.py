"""ToolService over gRPC: decode, call the app, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, NoReturn

import grpc

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.codec.messages import tool_call_from_proto
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import InvalidRequest, Unsupported
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.messages import ToolCall
from pagantic_common.telemetry.scope import current_deadline
from services.tools.app.execution import ToolExecutor
from services.tools.app.registry import ToolRegistry
from services.tools.convert import outcome_to_proto, registered_tool_to_proto, report_to_proto, timeout_from_proto

Context = grpc.aio.ServicerContext[Any, Any]

# What a caller needs for each method.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "ExecuteTool": Scope.EXECUTE,
        "ExecuteToolStream": Scope.EXECUTE,
        "ListTools": Scope.READ,
        "RegisterMcpServer": Scope.ADMIN,
        "RemoveMcpServer": Scope.ADMIN,
    }
)


class ToolServicer(pb_grpc.ToolServiceServicer):
    """Serves the registry and the executor."""

    def __init__(self, registry: ToolRegistry, executor: ToolExecutor, clock: Clock) -> None:
        self._registry = registry
        self._executor = executor
        self._clock = clock

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        tools = self._registry.list_named(request.names)
        return pb.ListToolsResponse(tools=[registered_tool_to_proto(tool) for tool in tools])

    async def ExecuteTool(self, request: pb.ExecuteToolRequest, context: Context) -> pb.ExecuteToolResponse:
        return outcome_to_proto(await self._executor.execute(*self._decode(request)))

    async def ExecuteToolStream(
        self, request: pb.ExecuteToolRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteToolStreamResponse]:
        async with aclosing(self._executor.follow(*self._decode(request))) as reports:
            async for report in reports:
                yield report_to_proto(report)

    def _decode(self, request: pb.ExecuteToolRequest) -> tuple[ToolCall, Deadline]:
        """Return the call and when it must have ended; raises InvalidRequest."""
        if not request.HasField("call"):
            raise InvalidRequest("call is not set: name the tool and its arguments")
        require_id("call.id", request.call.id)
        timeout_s = timeout_from_proto(request)
        deadline = min(Deadline.after(self._clock.monotonic_s(), timeout_s), current_deadline())
        return tool_call_from_proto(request.call), deadline

    async def RegisterMcpServer(self, request: pb.RegisterMcpServerRequest, context: Context) -> NoReturn:
        raise Unsupported("Model Context Protocol servers arrive in a later version")

    async def RemoveMcpServer(self, request: pb.RemoveMcpServerRequest, context: Context) -> NoReturn:
        raise Unsupported("Model Context Protocol servers arrive in a later version")
