"""Finds tools by words. The index is rebuilt on the first search after the registry changes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from pagantic_common.domain.errors import InvalidRequest
from services.tools.app.registry import ToolRegistry
from services.tools.core.tool_search import ToolIndex
from services.tools.ports import Tool

DEFAULT_LIMIT, MAX_LIMIT = 20, 100


@dataclass(frozen=True, slots=True)
class FoundTool:
    """A tool and its score, above 0; higher is better."""

    tool: Tool
    score: float


class ToolSearch:
    """Searches a registry."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._index = ToolIndex(())
        self._version = -1
        self._building = asyncio.Lock()

    async def search(self, query: str, names: Collection[str], limit: int) -> list[FoundTool]:
        """Return the best of the named tools, or of all without names; 0 is the default limit.

        Raises InvalidRequest for a limit out of range.
        """
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"limit is {limit}: it must be between 0 and {MAX_LIMIT}")
        await self._build()
        wanted = frozenset(names)
        found = await asyncio.to_thread(
            self._index.search, query, lambda name: not wanted or name in wanted, limit or DEFAULT_LIMIT
        )
        tools = ((self._registry.find(name), score) for name, score in found)
        return [FoundTool(tool, score) for tool, score in tools if tool is not None]

    async def _build(self) -> None:
        async with self._building:
            version = self._registry.version
            if version == self._version:
                return
            definitions = [tool.definition for tool in self._registry.list_named()]
            self._index = await asyncio.to_thread(ToolIndex, definitions)
            self._version = version
