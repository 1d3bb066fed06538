"""Holds tools by name, and searches for tools by words. It is independent of the execution of tools."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound
from pagantic_common.domain.ids import check_tool_name
from pagantic_common.grammar.arguments import ArgumentChecker
from services.tools.core.tool_search import ToolIndex
from services.tools.ports import Tool

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
_MAX_LISTED_NAMES = 10
# The list of tools is a message of at most 4 MiB, which also holds each tool's name, safety class and reason.
_MAX_BYTES = 3 * 1024 * 1024
_OWN = ""
# Separates the name of a source from a number, because an earlier source may have had the same name.
NUMBER_MARK = "#"


class ToolRegistry:
    """Holds tools and the checkers of their arguments. Tool names are unique.

    A tool belongs to a source. The deployment's own tools are registered one by one and stay registered. The tools of
    any other source are replaced all at once.
    """

    def __init__(self, tools: Iterable[Tool] = (), *, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tools: dict[str, Tool] = {}
        self._checkers: dict[str, ArgumentChecker] = {}
        self._sources: dict[str, str] = {}
        self.version = 0  # incremented with every change
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> None:
        """Add a tool. Raises InvalidRequest if the name is invalid or taken, or if the schema is invalid."""
        self._add(_OWN, tool)

    def replace(
        self, source: str, tools: Iterable[Tool], *, max_tools: int = sys.maxsize, setting: str = ""
    ) -> Mapping[str, str]:
        """Replace all tools of a source with these tools.

        Returns the reason for each omitted tool by name: an invalid or taken name, an invalid schema, lack of space, or
        more tools than `setting` allows. Omitted tools do not count towards the limit.
        """
        self.version += 1
        for name in [name for name, owner in self._sources.items() if owner == source]:
            del self._tools[name], self._checkers[name], self._sources[name]
        room_bytes = self._max_bytes - sum(_size_bytes(tool) for tool in self._tools.values())
        left_out: dict[str, str] = {}
        count = 0
        for tool in tools:
            if count >= max_tools:
                left_out[tool.definition.name] = f"at most {max_tools} tools of a source are taken: raise {setting}"
                continue
            size_bytes = _size_bytes(tool)
            if size_bytes > room_bytes:
                left_out[tool.definition.name] = f"all tools would have more than {self._max_bytes} bytes"
                continue
            try:
                self._add(source, tool)
                room_bytes -= size_bytes
                count += 1
            except InvalidRequest as error:
                left_out[tool.definition.name] = str(error)
        return left_out

    def _add(self, source: str, tool: Tool) -> None:
        name = tool.definition.name
        check_tool_name(name)
        if name in self._tools:
            raise InvalidRequest(f"a tool named {name!r} is registered already")
        self._checkers[name] = ArgumentChecker(name, tool.definition.parameters_json)
        self._tools[name] = tool
        self._sources[name] = source
        self.version += 1

    def list_of(self, source: str) -> list[Tool]:
        """Return the tools of a source, sorted by name."""
        return [self._tools[name] for name in sorted(self._tools) if self._sources[name] == source]

    def origin_of(self, name: str) -> str:
        """Return the source of a registered tool without its number, or an empty string for the deployment's tools."""
        return self._sources.get(name, _OWN).partition(NUMBER_MARK)[0]

    def find(self, name: str) -> Tool | None:
        """Return the tool with this name, or None if the name is unknown."""
        return self._tools.get(name)

    def checker_of(self, name: str) -> ArgumentChecker:
        """Return the argument checker of a registered tool."""
        return self._checkers[name]

    def list_named(self, names: Iterable[str] = ()) -> list[Tool]:
        """Return the named tools, or all tools if no name is given, sorted by name. Raises NotFound."""
        requested_names = set(names) or self._tools.keys()
        for name in sorted(requested_names):
            if name not in self._tools:
                raise NotFound(self.describe_unknown(name), code=ErrorCode.TOOL_NOT_FOUND)
        return [self._tools[name] for name in sorted(requested_names)]

    def describe_unknown(self, name: str) -> str:
        """Return the message for an unknown name, which suggests similar names."""
        return f"no tool is named {name[:80]!r}: {self._suggest(name)}"

    def _suggest(self, name: str) -> str:
        names = sorted(self._tools)
        close = difflib.get_close_matches(name[:64], names, n=3, cutoff=0.5)
        if close:
            return f"did you mean {' or '.join(map(repr, close))}?"
        if not names:
            return "no tool is registered"
        listed = [repr(other) for other in names[:_MAX_LISTED_NAMES]]
        if len(names) > _MAX_LISTED_NAMES:
            listed.append("...")
        return f"registered are {', '.join(listed)}"


def _size_bytes(tool: Tool) -> int:
    definition = tool.definition
    texts = (definition.name, definition.description, definition.parameters_json)
    return sum(len(text.encode(errors="replace")) for text in texts)


@dataclass(frozen=True, slots=True)
class FoundTool:
    """A tool and its score above 0; higher is better."""

    tool: Tool
    score: float


class ToolSearch:
    """Searches the tools of a registry."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._index = ToolIndex(())
        self._version = -1
        self._building = asyncio.Lock()

    async def search(self, query: str, names: Collection[str], limit: int) -> list[FoundTool]:
        """Return the best of the named tools, or of all tools if no name is given.

        A `limit` of 0 selects the default limit. Raises InvalidRequest if `limit` is out of range.
        """
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"limit is {limit}: it must be between 0 and {MAX_LIMIT}")
        await self._build()
        requested_names = frozenset(names)
        matches = await asyncio.to_thread(
            self._index.search,
            query,
            lambda name: not requested_names or name in requested_names,
            limit or DEFAULT_LIMIT,
        )
        tools = ((self._registry.find(name), score) for name, score in matches)
        return [FoundTool(tool, score) for tool, score in tools if tool is not None]

    async def _build(self) -> None:
        async with self._building:
            version = self._registry.version
            if version == self._version:
                return
            definitions = [tool.definition for tool in self._registry.list_named()]
            self._index = await asyncio.to_thread(ToolIndex, definitions)
            self._version = version
