"""The tools service, restricted to the tools that a tenant may call."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, PermissionDenied
from pagantic_common.domain.messages import ToolCall
from services.orchestrator.app.access.permitting.checks import find_tool_denial
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.ports.policy import Policy
from services.orchestrator.ports.services import OfferedTool, Report, ToolsPort


class PermittedTools(ToolsPort):
    """A tools service that raises PermissionDenied (TOOL_DENIED) if the policy denies a named tool."""

    def __init__(self, tools: ToolsPort, policy: Policy) -> None:
        self._tools = tools
        self._policy = policy

    async def list_tools(self, names: Sequence[str]) -> list[OfferedTool]:
        """List the named tools. If no names are given, list all tools that the tenant may call."""
        offered = await self._tools.list_tools(names)
        if names:
            for tool in offered:
                self._check(tool)
            return offered
        return [tool for tool in offered if not find_tool_denial(self._policy, tool.definition)]

    async def search_tools(self, query: str, names: Sequence[str], limit: int) -> list[str]:
        return await self._tools.search_tools(query, names, limit)

    async def execute(self, call: ToolCall, report: Report) -> ToolCallRecord:
        (offered,) = await self._tools.list_tools([call.name])  # the policy needs the tool's safety class
        self._check(offered)
        return await self._tools.execute(call, report)

    def _check(self, offered: OfferedTool) -> None:
        if denial := find_tool_denial(self._policy, offered.definition):
            raise PermissionDenied(denial, code=ErrorCode.TOOL_DENIED)
