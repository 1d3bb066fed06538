"""Adds the document search tool to the tools service, which has no access to collections."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PermissionDenied
from pagantic_common.domain.messages import ToolCall
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.retrieval import ContextPolicy, Retriever
from services.orchestrator.core.tools.document_search import NAME, DocumentSearch, write_result
from services.orchestrator.ports.services import ContextPort, OfferedTool, Report, ToolsPort


class ToolsWithSearch(ToolsPort):
    """The tools service plus `search_documents`, which replaces a tool of the same name."""

    def __init__(self, tools: ToolsPort, context: ContextPort, collections: Sequence[str]) -> None:
        self._tools = tools
        self._context = context
        self._search = DocumentSearch(collections)
        self._offered = OfferedTool(self._search.definition, is_available=True)

    async def list_tools(self, names: Sequence[str]) -> list[OfferedTool]:
        """List the named tools, or all tools if no names are given, sorted by name."""
        others = [name for name in names if name != NAME]
        listed: list[OfferedTool] = []
        if others or not names:
            listed = [tool for tool in await self._tools.list_tools(others) if tool.definition.name != NAME]
        if not names or NAME in names:
            listed.append(self._offered)
        return sorted(listed, key=lambda tool: tool.definition.name)

    async def search_tools(self, query: str, names: Sequence[str], limit: int) -> list[str]:
        """Return the matching tools. `search_documents` comes first, because documents may be about anything."""
        others = [name for name in names if name != NAME]
        matches = await self._tools.search_tools(query, others, limit) if others else []
        if len(others) < len(names):
            matches = [NAME, *matches]
        return matches[:limit]

    async def execute(self, call: ToolCall, report: Report) -> ToolCallRecord:
        """Run a call. If a search fails, the record contains the failure."""
        if call.name != NAME:
            return await self._tools.execute(call, report)
        try:
            arguments = self._search.read(call.arguments_json)
        except InvalidRequest as error:
            return _record_of(call, str(error), ErrorCode.TOOL_INVALID_ARGUMENTS)
        policy = ContextPolicy(Retriever.UNSPECIFIED, arguments.collection, max_chunks=arguments.max_chunks)
        try:
            chunks = await self._context.retrieve(arguments.query, policy)
        except (InvalidRequest, NotFound) as error:
            return _record_of(call, str(error), ErrorCode.TOOL_EXECUTION_FAILED)
        except PermissionDenied as error:
            return _record_of(call, str(error), ErrorCode.TOOL_DENIED)
        return _record_of(call, write_result(chunks))


def _record_of(call: ToolCall, result: str, code: ErrorCode | None = None) -> ToolCallRecord:
    return ToolCallRecord(call.id, call.name, call.arguments_json, result, code is not None, code, duration_s=0.0)
