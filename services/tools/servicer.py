"""Serves ToolService and ToolProviderService over gRPC: decodes requests, calls use cases and encodes responses."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.tools.v1 import mcp_pb2
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.codec.errors import optional_failure_to_proto
from pagantic_common.codec.fields import EnumCodec
from pagantic_common.codec.messages import (
    duration_to_proto,
    tool_call_from_proto,
    tool_call_to_proto,
    tool_definition_from_proto,
    tool_definition_to_proto,
    tool_progress_from_proto,
    tool_progress_to_proto,
    tool_result_to_proto,
)
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.messages import Ending, ToolCall, ToolFailed, ToolProgress
from pagantic_common.telemetry.scope import current_deadline, effect_scope
from pagantic_common.tools.function import MAX_TIMEOUT_S
from services.tools.app.execution import Outcome, ToolExecutor
from services.tools.app.providers import CallAsked, CallWithdrawn, HealthAsked, Offered, ProviderEvent, Providers
from services.tools.app.registry import ToolRegistry, ToolSearch
from services.tools.app.servers import McpServers
from services.tools.core.servers import (
    FilledPrompt,
    HttpTransport,
    Page,
    ProgramTransport,
    Prompt,
    Resource,
    ResourceContents,
    ServerSpec,
    ServerState,
    ServerStatus,
)
from services.tools.ports import Tool

NANOS_PER_S = 10**9
_EFFECT_ID = re.compile("[0-9a-f]{64}")
_ENDINGS = EnumCodec(pb.ToolOutcome, Ending, "TOOL_OUTCOME_", unknown=Ending.UNKNOWN)

_STATES = {
    ServerState.CONNECTING: mcp_pb2.MCP_SERVER_STATE_CONNECTING,
    ServerState.CONNECTED: mcp_pb2.MCP_SERVER_STATE_CONNECTED,
    ServerState.LOST: mcp_pb2.MCP_SERVER_STATE_LOST,
}
Context = grpc.aio.ServicerContext[Any, Any]

# The scope that each method requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "ExecuteTool": Scope.EXECUTE,
        "ExecuteToolStream": Scope.EXECUTE,
        "GetToolOutcome": Scope.EXECUTE,
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


# The scope that each method requires. A provider's tools are offered to the models of every tenant.
PROVIDER_SCOPES: Mapping[str, Scope] = MappingProxyType(
    {"OfferTools": Scope.ADMIN, "AnswerToolCall": Scope.ADMIN, "AnswerHealthCheck": Scope.ADMIN}
)


class ToolServicer(pb_grpc.ToolServiceServicer):
    """Serves the tool registry, the executor and the MCP servers."""

    def __init__(self, registry: ToolRegistry, executor: ToolExecutor, servers: McpServers, clock: Clock) -> None:
        self._search = ToolSearch(registry)
        self._registry = registry
        self._executor = executor
        self._servers = servers
        self._clock = clock
        self._started_as = uuid.uuid4()  # a restarted service counts its changes from zero again

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        tools = self._registry.list_named(request.names)
        reasons = [tool.unavailable_reason for tool in tools]
        state = f"{self._started_as} {self._registry.version} {reasons}"
        revision = hashlib.sha256(state.encode(errors="replace")).hexdigest()
        if request.known_revision == revision:
            return pb.ListToolsResponse(revision=revision, unchanged=True)
        return pb.ListToolsResponse(tools=[self._encoded(tool) for tool in tools], revision=revision)

    async def SearchTools(self, request: pb.SearchToolsRequest, context: Context) -> pb.SearchToolsResponse:
        matches = await self._search.search(request.query, request.names, request.limit)
        return pb.SearchToolsResponse(
            tools=[pb.FoundTool(tool=self._encoded(match.tool), score=match.score) for match in matches]
        )

    async def ExecuteTool(self, request: pb.ExecuteToolRequest, context: Context) -> pb.ExecuteToolResponse:
        with effect_scope(request.effect_id):
            return outcome_to_proto(await self._executor.execute(*self._decode(request)))

    async def ExecuteToolStream(
        self, request: pb.ExecuteToolRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteToolStreamResponse]:
        call, deadline = self._decode(request)
        with effect_scope(request.effect_id):
            async with aclosing(self._executor.follow(call, deadline)) as reports:
                async for report in reports:
                    yield report_to_proto(report)

    async def GetToolOutcome(self, request: pb.GetToolOutcomeRequest, context: Context) -> pb.GetToolOutcomeResponse:
        _check_effect_id(request.effect_id)
        lost = await self._executor.find_outcome(request.tool_name, request.effect_id)
        return pb.GetToolOutcomeResponse(outcome=_ENDINGS.to_proto(lost.ending), content=lost.content)

    def _encoded(self, tool: Tool) -> pb.RegisteredTool:
        return registered_tool_to_proto(tool, self._registry.origin_of(tool.definition.name))

    def _decode(self, request: pb.ExecuteToolRequest) -> tuple[ToolCall, Deadline]:
        """Return the call and its deadline. Raises InvalidRequest."""
        if not request.HasField("call"):
            raise InvalidRequest("call is not set: name the tool and its arguments")
        require_id("call.id", request.call.id)
        if request.effect_id:
            _check_effect_id(request.effect_id)
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


def _check_effect_id(effect_id: str) -> None:
    if not _EFFECT_ID.fullmatch(effect_id):
        raise InvalidRequest(f"effect_id {effect_id[:80]!r} must be 64 hexadecimal digits in lower case")


def timeout_from_proto(request: pb.ExecuteToolRequest) -> float | None:
    """Decode the timeout in seconds, or return None if it is unset or zero.

    Raises InvalidRequest if the timeout is out of range.
    """
    timeout = request.timeout
    if not (0 <= timeout.seconds <= MAX_TIMEOUT_S and 0 <= timeout.nanos < NANOS_PER_S):
        raise InvalidRequest(
            f"timeout is {timeout.seconds} s and {timeout.nanos} ns: it must be between 0 and {MAX_TIMEOUT_S} s"
        )
    return timeout.ToNanoseconds() / NANOS_PER_S or None


def registered_tool_to_proto(tool: Tool, origin: str = "") -> pb.RegisteredTool:
    """Encode a tool, its availability and its origin."""
    reason = tool.unavailable_reason
    return pb.RegisteredTool(
        definition=tool_definition_to_proto(tool.definition),
        available=not reason,
        unavailable_reason=reason,
        origin=origin,
    )


def report_to_proto(report: ToolProgress | Outcome) -> pb.ExecuteToolStreamResponse:
    """Encode the progress or the outcome of a call."""
    if isinstance(report, Outcome):
        return pb.ExecuteToolStreamResponse(completed=outcome_to_proto(report))
    return pb.ExecuteToolStreamResponse(progress=tool_progress_to_proto(report))


def outcome_to_proto(outcome: Outcome) -> pb.ExecuteToolResponse:
    """Encode the outcome of a call."""
    return pb.ExecuteToolResponse(
        result=tool_result_to_proto(outcome.result),
        error=optional_failure_to_proto(outcome.failure),
        duration=duration_to_proto(outcome.duration_s),
        attempts=outcome.attempts,
    )


def server_spec_from_proto(request: pb.RegisterMcpServerRequest) -> ServerSpec:
    """Decode a server. Raises InvalidRequest if it has no readable program or URL."""
    transport: ProgramTransport | HttpTransport
    match request.WhichOneof("transport"):
        case "command":
            argv = tuple(request.command.argv)
            if not argv or not argv[0] or any("\0" in argument for argument in argv):
                raise InvalidRequest("command.argv must begin with a program, and have no NUL characters")
            transport = ProgramTransport(argv)
        case "url":
            transport = HttpTransport.parse(request.url)
        case _:
            raise InvalidRequest("transport is not set: give a command or a url")
    return ServerSpec(request.name, transport, trusts_annotations=request.trust_annotations)


def server_status_to_proto(status: ServerStatus) -> mcp_pb2.McpServer:
    """Encode the status of a server."""
    return mcp_pb2.McpServer(
        name=status.name,
        transport=status.transport,
        state=_STATES[status.state],
        reason=status.reason,
        protocol_version=status.protocol_version,
        tool_count=status.tool_count,
        left_out_tools=status.left_out,
    )


def resources_to_proto(page: Page[Resource]) -> pb.ListMcpResourcesResponse:
    """Encode a page of resources."""
    resources = [
        mcp_pb2.McpResource(
            uri=resource.uri,
            name=resource.name,
            title=resource.title,
            description=resource.description,
            mime_type=resource.mime_type,
            size_bytes=resource.size_bytes,
        )
        for resource in page.items
    ]
    return pb.ListMcpResourcesResponse(resources=resources, next_page_token=page.next_token)


def contents_to_proto(contents: Iterable[ResourceContents]) -> pb.ReadMcpResourceResponse:
    """Encode the contents of a resource."""
    return pb.ReadMcpResourceResponse(contents=[_part_to_proto(part) for part in contents])


def _part_to_proto(part: ResourceContents) -> mcp_pb2.McpResourceContents:
    encoded = mcp_pb2.McpResourceContents(uri=part.uri, mime_type=part.mime_type)
    if isinstance(part.data, str):
        encoded.text = part.data
    else:
        encoded.blob = part.data
    return encoded


def prompts_to_proto(page: Page[Prompt]) -> pb.ListMcpPromptsResponse:
    """Encode a page of prompts."""
    prompts = [
        mcp_pb2.McpPrompt(
            name=prompt.name,
            title=prompt.title,
            description=prompt.description,
            arguments=[
                mcp_pb2.McpPromptArgument(
                    name=argument.name, description=argument.description, required=argument.is_required
                )
                for argument in prompt.arguments
            ],
        )
        for prompt in page.items
    ]
    return pb.ListMcpPromptsResponse(prompts=prompts, next_page_token=page.next_token)


def prompt_to_proto(prompt: FilledPrompt) -> pb.GetMcpPromptResponse:
    """Encode a filled-in prompt."""
    messages = [mcp_pb2.McpPromptMessage(role=message.role, content=message.content) for message in prompt.messages]
    return pb.GetMcpPromptResponse(description=prompt.description, messages=messages)


def answer_from_proto(request: pb.AnswerToolCallRequest) -> ToolProgress | str | ToolFailed:
    """Decode a program's answer. Raises InvalidRequest if the answer is missing."""
    match request.WhichOneof("answer"):
        case "progress":
            return tool_progress_from_proto(request.progress)
        case "result":
            return request.result
        case "error":
            return ToolFailed(request.error)
        case _:
            raise InvalidRequest("the answer is not set: send progress, result or error")


def provider_event_to_proto(event: ProviderEvent) -> pb.OfferToolsResponse:
    """Encode a message to a program that offers tools."""
    match event:
        case Offered():
            offered = pb.ToolsOffered(
                offer_id=event.offer_id,
                tools=[registered_tool_to_proto(tool, event.origin) for tool in event.tools],
                left_out=event.left_out,
                health_check_interval=duration_to_proto(event.health_check_s),
            )
            return pb.OfferToolsResponse(offered=offered)
        case CallAsked(call=call, effect_id=effect_id):
            return pb.OfferToolsResponse(call=pb.OfferedToolCall(call=tool_call_to_proto(call), effect_id=effect_id))
        case CallWithdrawn(call_id=call_id):
            return pb.OfferToolsResponse(withdrawn=pb.ToolCallWithdrawn(call_id=call_id))
        case HealthAsked():
            return pb.OfferToolsResponse(health_check=pb.ProviderHealthCheck())
