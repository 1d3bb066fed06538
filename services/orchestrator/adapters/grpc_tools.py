"""Implements ToolsPort over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import grpc

from pagantic.tools.v1 import tools_service_pb2, tools_service_pb2_grpc
from pagantic_common.codec.errors import error_code_from_proto
from pagantic_common.codec.fields import EnumCodec
from pagantic_common.codec.messages import (
    duration_from_proto,
    tool_call_to_proto,
    tool_definition_from_proto,
    tool_progress_from_proto,
)
from pagantic_common.domain.errors import ErrorCode, Internal, Unsupported
from pagantic_common.domain.messages import Ending, LostCall, ToolCall
from pagantic_common.rpc.peer import Credentials, Peer, pass_on
from pagantic_common.telemetry.scope import current_effect_id
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.ports.services import OfferedTool, Report

_ENDINGS = EnumCodec(tools_service_pb2.ToolOutcome, Ending, "TOOL_OUTCOME_", unknown=Ending.UNKNOWN)

MAX_CACHED_LISTS = 64
# Callers choose the names in a list, so a longer list of named tools is not cached. The list of all tools always is.
MAX_CACHED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Listed:
    """A list of tools, and its revision in the tools service."""

    revision: str
    tools: tuple[OfferedTool, ...] = ()


_NOTHING_LISTED = _Listed("")


class GrpcTools:
    """Client of the tools service."""

    def __init__(self, channel: grpc.aio.Channel, patience_s: float, credentials: Credentials = pass_on) -> None:
        self._stub: tools_service_pb2_grpc.ToolServiceAsyncStub = tools_service_pb2_grpc.ToolServiceStub(channel)
        self._peer = Peer("tools", channel, patience_s=patience_s, credentials=credentials)
        self._listed: dict[tuple[str, ...], _Listed] = {}

    async def list_tools(self, names: Sequence[str]) -> list[OfferedTool]:
        """List the named tools, or all tools if no names are given.

        An unchanged list contains the same objects as before, so callers can cache values derived from it.
        """
        key = tuple(names)
        known = self._listed.get(key, _NOTHING_LISTED)
        request = tools_service_pb2.ListToolsRequest(names=names, known_revision=known.revision)
        reply = await self._peer.call_unary(self._stub.ListTools, request)
        if reply.unchanged:
            return list(known.tools)
        tools = [
            OfferedTool(
                tool_definition_from_proto(tool.definition), tool.available, tool.unavailable_reason, tool.origin
            )
            for tool in reply.tools
        ]
        if reply.revision and (not key or reply.ByteSize() <= MAX_CACHED_BYTES):
            if len(self._listed) >= MAX_CACHED_LISTS:
                self._listed.clear()
            self._listed[key] = _Listed(reply.revision, tuple(tools))
        return tools

    async def search_tools(self, query: str, names: Sequence[str], limit: int) -> list[str]:
        """Return the named tools that match a query, best first, or all named tools if the service cannot search."""
        request = tools_service_pb2.SearchToolsRequest(query=query, names=names, limit=limit)
        try:
            reply = await self._peer.call_unary(self._stub.SearchTools, request)
        except Unsupported:  # The tools service is an earlier version.
            return list(names)
        return [match.tool.definition.name for match in reply.tools]

    async def execute(self, call: ToolCall, report: Report) -> ToolCallRecord:
        """Run a call and report its progress. If the tool itself fails, the record contains the failure."""
        request = tools_service_pb2.ExecuteToolRequest(call=tool_call_to_proto(call), effect_id=current_effect_id())
        try:
            return await self._follow(call, request, report)
        except Unsupported:  # The tools service is older during a rolling update.
            return _record_of(call, await self._peer.call_unary(self._stub.ExecuteTool, request))

    async def find_outcome(self, tool: str, effect_id: str) -> LostCall:
        """Ask a tool for the outcome of a lost call. An earlier version of the service leaves it unknown."""
        request = tools_service_pb2.GetToolOutcomeRequest(tool_name=tool, effect_id=effect_id)
        try:
            reply = await self._peer.call_unary(self._stub.GetToolOutcome, request)
        except Unsupported:
            return LostCall(Ending.UNKNOWN)
        return LostCall(_ENDINGS.from_proto(reply.outcome), reply.content)

    async def _follow(
        self, call: ToolCall, request: tools_service_pb2.ExecuteToolRequest, report: Report
    ) -> ToolCallRecord:
        async with aclosing(self._peer.call_stream(self._stub.ExecuteToolStream, request)) as responses:
            async for response in responses:
                if response.HasField("completed"):
                    return _record_of(call, response.completed)
                await report(tool_progress_from_proto(response.progress))
        raise Internal(f"the call of {call.name!r} ended without a result", code=ErrorCode.TOOL_EXECUTION_FAILED)


def _record_of(call: ToolCall, reply: tools_service_pb2.ExecuteToolResponse) -> ToolCallRecord:
    return ToolCallRecord(
        id=call.id,
        name=call.name,
        arguments_json=call.arguments_json,
        result=reply.result.content,
        is_error=reply.result.is_error,
        error_code=error_code_from_proto(reply.error.code),
        duration_s=duration_from_proto(reply.duration),
        is_retryable=reply.error.retryable,
    )
