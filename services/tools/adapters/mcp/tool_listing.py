"""Reads the tool list of a server entry by entry, within limits for the whole list.

A server cannot make its list expensive to read: large tools are not validated, and a tool with many problems gets only
their number. Tools that violate the protocol are removed from the pages before the SDK reads them, because the SDK
would reject the whole list or silently omit the tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from mcp.client import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp.types.methods import parse_server_result
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.servers import OfferedTool

METHOD = "tools/list"
MAX_PAGES = 100
# The tools of all servers together take at most 3 MiB; a list also contains icons and result schemas.
MAX_LIST_BYTES = 4 * 1024 * 1024
# The limit on invalid tools is lower, because their validation takes longer.
MAX_BROKEN_BYTES = 512 * 1024
MAX_BROKEN = 1000
MAX_REASONS = 128
MAX_REASON_CHARS = 500
# The number of listed tools per registered tool, because the registry may reject names and schemas.
_LISTED_PER_TOOL = 2
_MAX_PROBLEMS = 100
_MAX_PLACES = 5
# A tool list with these additional fields satisfies every version of the protocol.
_REST_OF_LIST = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class ToolListing:
    """Reads the entries of a list in order, page by page, until a limit is reached."""

    def __init__(self, version: str, max_tools: int, max_tool_bytes: int) -> None:
        self._version = version
        self._max_tools = max_tools
        self._max_tool_bytes = max_tool_bytes
        self._read = 0
        self._read_bytes = 0
        self._fitting = 0
        self._broken = 0
        self._broken_bytes = 0
        self._unread = 0
        self._left_out: list[OfferedTool] = []
        self._reasons = 0

    @property
    def end_reason(self) -> str:
        """The reason why no further tools are read, or an empty string while no limit is reached."""
        if self._fitting >= _LISTED_PER_TOOL * self._max_tools:
            return f"the server has more than {self._max_tools} tools: raise MCP_MAX_TOOLS"
        if self._broken >= MAX_BROKEN:
            return f"{MAX_BROKEN} of the tools before them cannot be used: mend the server"
        if self._broken_bytes >= MAX_BROKEN_BYTES:
            return f"the tools before them that break the protocol have {MAX_BROKEN_BYTES} bytes: mend the server"
        if self._read_bytes >= MAX_LIST_BYTES:
            return f"the list has more than {MAX_LIST_BYTES} bytes: make the server list less"
        return ""

    @property
    def is_cut(self) -> bool:
        """Whether tools were skipped, or the list has reached its size limit."""
        return self._unread > 0 or self._read_bytes >= MAX_LIST_BYTES

    def take_rest(self, rest: Mapping[str, Any]) -> None:
        """Count the size of a page without its tools."""
        self._read_bytes += _size_bytes(rest) or MAX_LIST_BYTES

    def skip(self, count: int) -> None:
        """Count unread tools."""
        self._unread += count

    def take(self, tool: Any) -> bool:
        """Read an entry, and return whether it is a valid tool of the protocol."""
        self._read += 1
        size_bytes = _size_bytes(tool)
        self._read_bytes += size_bytes
        if size_bytes > self._max_tool_bytes:
            limit = self._max_tool_bytes
            defect = f"its JSON has {size_bytes} bytes, at most {limit} are taken: shorten its schema"
        else:
            defect = _defect_of(tool, size_bytes, self._version)
            if defect:
                self._broken_bytes += size_bytes or self._max_tool_bytes
        if not defect:
            self._fitting += 1
            return True
        self._broken += 1
        if self._reasons < MAX_REASONS:
            self._reasons += 1
            self._left_out.append(OfferedTool(_name_of(tool) or f"unnamed_{self._read}", "", "{}", defect=defect))
        return False

    def pop_left_out(self) -> Sequence[OfferedTool]:
        """Return the defective tools that were read since the last call."""
        left_out, self._left_out = self._left_out, []
        return left_out

    def describe_others(self, *, has_more_pages: bool) -> Mapping[str, str]:
        """Describe the tools that were omitted without a reason. Empty if every omitted tool has a reason."""
        unnamed = self._broken - self._reasons
        words = [f"{unnamed} cannot be used, as others before them"] if unnamed else []
        if self._unread or has_more_pages:
            words.append(f"not read: {self.end_reason or f'the list has more than {MAX_PAGES} pages'}")
        if not words:
            return {}
        count = f"{unnamed + self._unread} " if unnamed + self._unread else ""
        further = ", and those of further pages" if has_more_pages else ""
        return {f"and {count}more{further}": "; ".join(words)}


def places_of(error: ValidationError, first: int, last: int) -> str:
    """Return parts `first` to `last` of some problems' paths, or only the number of problems if there are many.

    The library describes all problems or no problem, and a hostile message may have a million problems.
    """
    count = error.error_count()
    if count > _MAX_PROBLEMS:
        return f"{count} places"
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    places = sorted({".".join(map(str, problem["loc"][first:last])) for problem in problems})
    named = ", ".join(islice(places, _MAX_PLACES))
    return f"{named} and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else named


def _defect_of(tool: Any, size_bytes: int, version: str) -> str:
    """Return the reason why a tool cannot be used, or an empty string if it can be used."""
    if not isinstance(tool, dict):
        return "it is not an object"
    if not size_bytes:
        return "it holds a number that JSON cannot have, or is nested too deeply"
    try:
        parse_server_result(METHOD, version, {**_REST_OF_LIST, "tools": [tool]})
    except ValidationError as error:
        return _one_line(f"it breaks the protocol in the fields: {places_of(error, 2, 4)}")
    if version not in MODERN_PROTOCOL_VERSIONS:
        return ""
    reason = find_invalid_x_mcp_header(tool["inputSchema"])
    return _one_line(f"it breaks the protocol: {reason}") if reason else ""


def _size_bytes(value: Any) -> int:
    """Return the size of a value as JSON in bytes, or 0 if JSON cannot represent the value."""
    try:
        return len(dump_json(value).encode(errors="replace"))
    except (ValueError, RecursionError):
        return 0


def _name_of(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON_CHARS]


class ToolListFilter:
    """Filters the pages that a session receives. Set `listing` before requesting the list."""

    def __init__(self, session: ClientSession, listing: ToolListing) -> None:
        self.listing = listing
        # The SDK has no public hook that sees a result before its validation.
        dispatcher = session._dispatcher  # noqa: SLF001
        self._send = dispatcher.send_raw_request
        dispatcher.send_raw_request = self._send_filtered  # type: ignore[method-assign]

    async def _send_filtered(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        result = await self._send(method, params, opts)
        tools = result.get("tools")
        if method == METHOD and isinstance(tools, list):
            self.listing.take_rest({**result, "tools": []})
            return {**result, "tools": await sift(tools, self.listing)}
        return result


async def sift(tools: Sequence[Any], listing: ToolListing) -> list[Any]:
    """Return the valid tools of a page. The event loop runs other work between two tools."""
    fitting: list[Any] = []
    for number, tool in enumerate(tools):
        if listing.end_reason:
            listing.skip(len(tools) - number)
            break
        if listing.take(tool):
            fitting.append(tool)
        await asyncio.sleep(0)
    return fitting
