"""Tools by name. Does not know how they run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound
from pagantic_common.domain.ids import check_tool_name
from pagantic_common.domain.messages import ToolDefinition
from services.tools.core.arguments import ArgumentChecker

_MAX_LISTED_NAMES = 10


class Defined(Protocol):
    """Anything that has a definition."""

    @property
    def definition(self) -> ToolDefinition:
        """What it is called, does and takes."""


ToolT = TypeVar("ToolT", bound=Defined)


class ToolRegistry(Generic[ToolT]):
    """Holds tools and the checkers of their arguments; a name is taken once."""

    def __init__(self, tools: Iterable[ToolT] = ()) -> None:
        self._tools: dict[str, ToolT] = {}
        self._checkers: dict[str, ArgumentChecker] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: ToolT) -> None:
        """Add a tool; raises InvalidRequest on a bad or taken name, or a schema that is none."""
        name = tool.definition.name
        check_tool_name(name)
        if name in self._tools:
            raise InvalidRequest(f"a tool named {name!r} is registered already")
        self._checkers[name] = ArgumentChecker(name, tool.definition.parameters_json)
        self._tools[name] = tool

    def find(self, name: str) -> ToolT | None:
        """Return the tool of that name, if there is one."""
        return self._tools.get(name)

    def checker_of(self, name: str) -> ArgumentChecker:
        """Return what checks the arguments of a registered tool."""
        return self._checkers[name]

    def list_named(self, names: Iterable[str] = ()) -> list[ToolT]:
        """Return tools sorted by name; no names are all. Raises NotFound for a name that is not registered."""
        wanted = set(names) or self._tools.keys()
        for name in sorted(wanted):
            if name not in self._tools:
                raise NotFound(self.describe_unknown(name), code=ErrorCode.TOOL_NOT_FOUND)
        return [self._tools[name] for name in sorted(wanted)]

    def describe_unknown(self, name: str) -> str:
        """Say that there is no such tool and which names come close."""
        known = sorted(self._tools)
        close = difflib.get_close_matches(name[:64], known, n=3, cutoff=0.5)
        if close:
            hint = f"did you mean {' or '.join(map(repr, close))}?"
        elif known:
            more = ", ..." if len(known) > _MAX_LISTED_NAMES else ""
            hint = f"registered are {', '.join(map(repr, known[:_MAX_LISTED_NAMES]))}{more}"
        else:
            hint = "no tool is registered"
        return f"no tool is named {name[:80]!r}: {hint}"
