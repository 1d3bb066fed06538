"""Adds the tool that searches documents, because the tools service has no collections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PermissionDenied
from pagantic_common.domain.messages import Ending, LostCall, ToolCall
from services.orchestrator.app.services import (
    Call,
    CallTool,
    FindOutcome,
    ListTools,
    Perform,
    Retrieve,
    SearchTools,
    Services,
    Sink,
)
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.retrieval import ContextPolicy, Retriever
from services.orchestrator.core.tools.document_search import NAME, DocumentSearch, write_result
from services.orchestrator.ports.services import OfferedTool


class SearchDocuments:
    """Answers calls of `search_documents`, which replaces a tool of the same name.

    Args:
        services: The services that search the collections for the caller.
        collections: The collections that may be searched.
    """

    def __init__(self, services: Services, collections: Sequence[str]) -> None:
        self._services = services
        self._search = DocumentSearch(collections)
        self._offered = OfferedTool(self._search.definition, is_available=True)

    async def __call__(self, perform: Perform, call: Call[Any], sink: Sink[Any]) -> Any:
        """List, match or run the tool together with the tools of the tools service."""
        match call:
            case ListTools(names):
                return await self._list(perform, names, sink)
            case SearchTools():
                return await self._match(perform, call, sink)
            case CallTool(tool_call) if tool_call.name == NAME:
                return await self._run(tool_call)
            case FindOutcome(tool) if tool == NAME:
                return LostCall(Ending.UNKNOWN)
        return await perform(call, sink)

    async def _list(self, perform: Perform, names: Sequence[str], sink: Sink[Any]) -> list[OfferedTool]:
        others = [name for name in names if name != NAME]
        listed: list[OfferedTool] = []
        if others or not names:
            offered = await perform(ListTools(others), sink)
            listed = [tool for tool in offered if tool.definition.name != NAME]
        if not names or NAME in names:
            listed.append(self._offered)
        return sorted(listed, key=lambda tool: tool.definition.name)

    async def _match(self, perform: Perform, call: SearchTools, sink: Sink[Any]) -> list[str]:
        """Return the matching tools, `search_documents` first, because documents may cover any topic."""
        others = [name for name in call.names if name != NAME]
        matches = await perform(SearchTools(call.query, others, call.limit), sink) if others else []
        if len(others) < len(call.names):
            matches = [NAME, *matches]
        return matches[: call.limit]

    async def _run(self, call: ToolCall) -> ToolCallRecord:
        """Search. If the search fails, the record contains the failure."""
        try:
            arguments = self._search.read(call.arguments_json)
        except InvalidRequest as error:
            return _record_of(call, str(error), ErrorCode.TOOL_INVALID_ARGUMENTS)
        policy = ContextPolicy(Retriever.UNSPECIFIED, arguments.collection, max_chunks=arguments.max_chunks)
        try:
            chunks = await self._services.do(Retrieve(arguments.query, policy))
        except (InvalidRequest, NotFound) as error:
            return _record_of(call, str(error), ErrorCode.TOOL_EXECUTION_FAILED)
        except PermissionDenied as error:
            return _record_of(call, str(error), ErrorCode.TOOL_DENIED)
        return _record_of(call, write_result(chunks))


def _record_of(call: ToolCall, result: str, code: ErrorCode | None = None) -> ToolCallRecord:
    return ToolCallRecord(call.id, call.name, call.arguments_json, result, code is not None, code, duration_s=0.0)
