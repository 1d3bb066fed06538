"""Tools by name. Does not know how they run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound
from pagantic_common.domain.ids import check_tool_name
from services.tools.core.arguments import ArgumentChecker
from services.tools.ports import Tool

_MAX_LISTED_NAMES = 10


class ToolRegistry:
    """Holds tools and the checkers of their arguments; names are unique."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._checkers: dict[str, ArgumentChecker] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> None:
        """Add a tool; raises InvalidRequest for a wrong or taken name, and for a wrong schema."""
        name = tool.definition.name
        check_tool_name(name)
        if name in self._tools:
            raise InvalidRequest(f"a tool named {name!r} is registered already")
        self._checkers[name] = ArgumentChecker(name, tool.definition.parameters_json)
        self._tools[name] = tool

    def find(self, name: str) -> Tool | None:
        """Return the tool with this name, if there is one."""
        return self._tools.get(name)

    def checker_of(self, name: str) -> ArgumentChecker:
        """Return the checker of a registered tool's arguments."""
        return self._checkers[name]

    def list_named(self, names: Iterable[str] = ()) -> list[Tool]:
        """Return the named tools, or all without names, sorted by name. Raises NotFound for an unknown name."""
        wanted = set(names) or self._tools.keys()
        for name in sorted(wanted):
            if name not in self._tools:
                raise NotFound(self.describe_unknown(name), code=ErrorCode.TOOL_NOT_FOUND)
        return [self._tools[name] for name in sorted(wanted)]

    def describe_unknown(self, name: str) -> str:
        """Return the message for an unknown name, with similar names."""
        return f"no tool is named {name[:80]!r}: {self._suggest(name)}"

    def _suggest(self, name: str) -> str:
        known = sorted(self._tools)
        close = difflib.get_close_matches(name[:64], known, n=3, cutoff=0.5)
        if close:
            return f"did you mean {' or '.join(map(repr, close))}?"
        if not known:
            return "no tool is registered"
        listed = [repr(other) for other in known[:_MAX_LISTED_NAMES]]
        if len(known) > _MAX_LISTED_NAMES:
            listed.append("...")
        return f"registered are {', '.join(listed)}"
