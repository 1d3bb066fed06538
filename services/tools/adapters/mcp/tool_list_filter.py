"""Takes the tools that break the protocol out of a server's lists.

The SDK refuses a whole list for one of them, and leaves others out without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mcp.client import ClientSession
from mcp.shared.dispatcher import CallOptions

from services.tools.adapters.mcp.tool_listing import METHOD, ToolListing


class ToolListFilter:
    """Filters the pages that a session receives. Set `listing` before requesting the list."""

    def __init__(self, session: ClientSession, listing: ToolListing) -> None:
        self.listing = listing
        # The SDK has no public place where a result is not yet validated.
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
    """Return the tools of a page that satisfy the protocol; others of the service run between two of them."""
    fitting: list[Any] = []
    for number, tool in enumerate(tools):
        if listing.end_reason:
            listing.skip(len(tools) - number)
            break
        if listing.take(tool):
            fitting.append(tool)
        await asyncio.sleep(0)
    return fitting
