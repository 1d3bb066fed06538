"""ToolService and ToolProviderService over gRPC: decode, call the app, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.codec.messages import tool_call_from_proto, tool_definition_from_proto
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.messages import ToolCall
from pagantic_common.telemetry.scope import current_deadline
from services.tools.app.execution import ToolExecutor
from services.tools.app.providers import Providers
from services.tools.app.registry import ToolRegistry
from services.tools.app.search import ToolSearch
from services.tools.app.servers import McpServers
from services.tools.convert import (
    answer_from_proto,
    contents_to_proto,
    outcome_to_proto,
    prompt_to_proto,
    prompts_to_proto,
    provider_event_to_proto,
    registered_tool_to_proto,
    report_to_proto,
    resources_to_proto,
    server_spec_from_proto,
    server_status_to_proto,
    timeout_from_proto,
)
from services.tools.ports import Tool

Context = grpc.aio.ServicerContext[Any, Any]

# The scope that each method requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "ExecuteTool": Scope.EXECUTE,
        "ExecuteToolStream": Scope.EXECUTE,
        "ListTools": Scope.READ,
        "SearchTools": Scope.READ,
        "GetMcpPrompt": Scope.EXECUTE,
        "ListMcpPrompts": Scope.READ,
        "ListMcpResources": Scope.READ,
        "ListMcpServers": Scope.READ,
        "ReadMcpResource": Scope.EXECUTE,
        "RegisterMcpServer": Scope.ADMIN,
        "RemoveMcpServer": Scope.ADMIN,
    }
)


# The scope that each method requires: a provider's tools are offered to the models of every tenant.
PROVIDER_SCOPES: Mapping[str, Scope] = MappingProxyType(
    {"OfferTools": Scope.ADMIN, "AnswerToolCall": Scope.ADMIN, "AnswerHealthCheck": Scope.ADMIN}
)


class ToolServicer(pb_grpc.ToolServiceServicer):
    """Serves the registry, the executor and the servers that bring tools."""

    def __init__(self, registry: ToolRegistry, executor: ToolExecutor, servers: McpServers, clock: Clock) -> None:
        self._search = ToolSearch(registry)
        self._registry = registry
        self._executor = executor
        self._servers = servers
        self._clock = clock

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        tools = self._registry.list_named(request.names)
        return pb.ListToolsResponse(tools=[self._encoded(tool) for tool in tools])

    async def SearchTools(self, request: pb.SearchToolsRequest, context: Context) -> pb.SearchToolsResponse:
        found = await self._search.search(request.query, request.names, request.limit)
        return pb.SearchToolsResponse(
            tools=[pb.FoundTool(tool=self._encoded(one.tool), score=one.score) for one in found]
        )

    async def ExecuteTool(self, request: pb.ExecuteToolRequest, context: Context) -> pb.ExecuteToolResponse:
        return outcome_to_proto(await self._executor.execute(*self._decode(request)))

    async def ExecuteToolStream(
        self, request: pb.ExecuteToolRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteToolStreamResponse]:
        async with aclosing(self._executor.follow(*self._decode(request))) as reports:
            async for report in reports:
                yield report_to_proto(report)

    def _encoded(self, tool: Tool) -> pb.RegisteredTool:
        return registered_tool_to_proto(tool, self._registry.origin_of(tool.definition.name))

    def _decode(self, request: pb.ExecuteToolRequest) -> tuple[ToolCall, Deadline]:
        """Return the call and when it must have ended; raises InvalidRequest."""
        if not request.HasField("call"):
            raise InvalidRequest("call is not set: name the tool and its arguments")
        require_id("call.id", request.call.id)
        timeout_s = timeout_from_proto(request)
        deadline = min(Deadline.after(self._clock.monotonic_s(), timeout_s), current_deadline())
        return tool_call_from_proto(request.call), deadline

    async def RegisterMcpServer(
        self, request: pb.RegisterMcpServerRequest, context: Context
    ) -> pb.RegisterMcpServerResponse:
        tools = await self._servers.register(server_spec_from_proto(request))
        return pb.RegisterMcpServerResponse(tools=[self._encoded(tool) for tool in tools])

    async def RemoveMcpServer(self, request: pb.RemoveMcpServerRequest, context: Context) -> pb.RemoveMcpServerResponse:
        await self._servers.remove(request.name)
        return pb.RemoveMcpServerResponse()

    async def ListMcpServers(self, request: pb.ListMcpServersRequest, context: Context) -> pb.ListMcpServersResponse:
        statuses = self._servers.statuses()
        return pb.ListMcpServersResponse(servers=[server_status_to_proto(status) for status in statuses])

    async def ListMcpResources(
        self, request: pb.ListMcpResourcesRequest, context: Context
    ) -> pb.ListMcpResourcesResponse:
        session = self._servers.session_of(request.server)
        return resources_to_proto(await session.list_resources(request.page_token))

    async def ReadMcpResource(self, request: pb.ReadMcpResourceRequest, context: Context) -> pb.ReadMcpResourceResponse:
        return contents_to_proto(await self._servers.session_of(request.server).read_resource(request.uri))

    async def ListMcpPrompts(self, request: pb.ListMcpPromptsRequest, context: Context) -> pb.ListMcpPromptsResponse:
        session = self._servers.session_of(request.server)
        return prompts_to_proto(await session.list_prompts(request.page_token))

    async def GetMcpPrompt(self, request: pb.GetMcpPromptRequest, context: Context) -> pb.GetMcpPromptResponse:
        session = self._servers.session_of(request.server)
        return prompt_to_proto(await session.get_prompt(request.name, request.arguments))


class ToolProviderServicer(pb_grpc.ToolProviderServiceServicer):
    """Serves the programs that offer tools."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers

    async def OfferTools(self, request: pb.OfferToolsRequest, context: Context) -> AsyncIterator[pb.OfferToolsResponse]:
        tools = [tool_definition_from_proto(tool) for tool in request.tools]
        async with aclosing(self._providers.offer(request.name, tools)) as events:
            async for event in events:
                yield provider_event_to_proto(event)

    async def AnswerToolCall(self, request: pb.AnswerToolCallRequest, context: Context) -> pb.AnswerToolCallResponse:
        self._providers.answer(request.offer_id, request.call_id, answer_from_proto(request))
        return pb.AnswerToolCallResponse()

    async def AnswerHealthCheck(
        self, request: pb.AnswerHealthCheckRequest, context: Context
    ) -> pb.AnswerHealthCheckResponse:
        self._providers.answer_health(request.offer_id, request.unavailable_reason)
        return pb.AnswerHealthCheckResponse()
