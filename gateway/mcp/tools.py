"""Lists and calls the tools of the server: its own tools, and the tools of the deployment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, Tool

from gateway.mcp.executions import Context, Executions
from gateway.mcp.mapping.deployment_tools import offered_tools, registered_name, tool_call_request
from gateway.mcp.mapping.own_tools import NAMES, own_tools, read_own_call
from gateway.mcp.mapping.progress import ExecutionProgress, ToolProgress
from gateway.mcp.mapping.results import failed, result_of, tool_result_of
from gateway.web.callers import Callers
from pagantic.common.v1 import message_pb2
from pagantic_common.codec.errors import error_code_to_proto
from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, InvalidRequest, PaganticError, Unavailable

LIST_S = 5.0
logger = logging.getLogger(__name__)


class Tools:
    """Lists and calls the server's tools."""

    def __init__(self, executions: Executions, callers: Callers) -> None:
        self._executions = executions
        self._callers = callers
        self._schemas: dict[str, dict[str, Any]] = {}

    async def list(self, context: Context) -> list[Tool]:
        """Return the server's own tools, followed by the deployment's tools that the caller may use."""
        tools = [*own_tools(), *offered_tools(await self._definitions(context), NAMES)]
        # The lists differ by caller but a tool's schema does not, so the schemas from other callers' lists are kept.
        self._schemas |= {tool.name: tool.input_schema for tool in tools}
        return tools

    async def _definitions(self, context: Context) -> Sequence[message_pb2.ToolDefinition]:
        """Return the callable tools by name. During an outage, log a warning and return no tools."""
        try:
            async with asyncio.timeout(LIST_S):
                listed = await self._callers.client_for(context.request).list_tools()
        except (Unavailable, DeadlineExceeded, TimeoutError) as error:
            logger.warning("the tools of the deployment are left out: %s", error or f"no answer within {LIST_S:g} s")
            return []
        return [tool.definition for tool in listed if tool.available]

    def schema_of(self, name: str) -> dict[str, Any] | None:
        """Return the schema of a tool's arguments as last listed, or None if the tool was never listed.

        A schema may name headers that must repeat arguments. Only clients that have listed the tool know these headers.
        """
        return self._schemas.get(name)

    async def call(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Call a tool. A failure becomes a result, but an unknown tool is an error of the protocol."""
        request_id = self._executions.new_request_id()
        try:
            if params.name in NAMES:
                return await self._call_own(context, params, request_id)
            return await self._call_registered(context, params, request_id)
        except PaganticError as error:
            return failed(error, request_id)

    async def _call_own(self, context: Context, params: CallToolRequestParams, request_id: str) -> CallToolResult:
        try:
            request = read_own_call(params.name, params.arguments or {}, request_id)
        except (TypeError, ValueError) as error:  # The client library's request builders raise these errors.
            raise InvalidRequest(str(error)) from None
        return result_of(await self._executions.run(context, request, ExecutionProgress()))

    async def _call_registered(
        self, context: Context, params: CallToolRequestParams, request_id: str
    ) -> CallToolResult:
        name = registered_name(params.name)
        request = tool_call_request(name, params.arguments or {}, request_id)
        response = await self._executions.run(context, request, ToolProgress())
        if not response.step_results and response.error.code == error_code_to_proto(ErrorCode.TOOL_NOT_FOUND):
            raise MCPError(INVALID_PARAMS, f"no tool is named {params.name!r}: see tools/list")
        return tool_result_of(response)
