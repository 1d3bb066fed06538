"""Takes the tools that break the protocol out of a server's lists.

The SDK refuses a whole list for one of them, and leaves others out without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp.client import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp.types.methods import parse_server_result
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from services.tools.core.servers import OfferedTool

_METHOD = "tools/list"
_MAX_REASON_CHARS = 500
# What a list has beside its tools: with it every version of the protocol takes a list of one tool.
_REST_OF_LIST = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class ToolListFilter:
    """Filters the lists that a session receives. `left_out` holds the tools that the last list lost.

    A list is cut at `max_listed` tools, so that a server does not have the service keep a million reasons.
    """

    def __init__(self, session: ClientSession, version: str, max_listed: int) -> None:
        self._version = version
        self._max_listed = max_listed
        self.left_out: Sequence[OfferedTool] = ()
        # The SDK has no public place where a result is not yet validated.
        dispatcher = session._dispatcher  # noqa: SLF001
        self._send = dispatcher.send_raw_request
        dispatcher.send_raw_request = self._send_filtered  # type: ignore[method-assign]

    async def _send_filtered(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        result = await self._send(method, params, opts)
        tools = result.get("tools")
        if method == _METHOD and isinstance(tools, list):
            fitting, self.left_out = sift(tools[: self._max_listed], self._version)
            return {**result, "tools": fitting}
        return result


def sift(tools: Sequence[Any], version: str) -> tuple[list[Any], list[OfferedTool]]:
    """Return the tools that satisfy a version of the protocol, and the others with their defects."""
    fitting: list[Any] = []
    left_out: list[OfferedTool] = []
    for number, tool in enumerate(tools, start=1):
        defect = _defect_of(tool, version)
        if defect:
            left_out.append(OfferedTool(_name_of(tool) or f"unnamed_{number}", "", "{}", defect=defect))
        else:
            fitting.append(tool)
    return fitting, left_out


def _defect_of(tool: Any, version: str) -> str:
    """Return why a tool cannot be used; empty for one that can."""
    if not isinstance(tool, dict):
        return "it is not an object"
    try:
        parse_server_result(_METHOD, version, {**_REST_OF_LIST, "tools": [tool]})
    except ValidationError as error:
        places = {".".join(map(str, problem["loc"][2:4])) for problem in error.errors(include_input=False)}
        return _one_line(f"it breaks the protocol in the fields: {', '.join(sorted(places))}")
    if version not in MODERN_PROTOCOL_VERSIONS:
        return ""
    reason = find_invalid_x_mcp_header(tool["inputSchema"])
    return _one_line(f"it breaks the protocol: {reason}") if reason else ""


def _name_of(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_REASON_CHARS]
