"""The transport for servers at URLs. It carries all requests of the SDK, including redirects and OAuth discovery."""

from __future__ import annotations

import asyncio

import httpx2

from services.tools.adapters.http_guard import GuardedTransport

_END_TIMEOUT_S = 2.0


class SessionTransport(GuardedTransport):
    """A guarded transport that knows how sessions end, and that the SDK bounds each event of a stream."""

    uncounted_type = "text/event-stream"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raises RequestRefused, and ResponseTooLarge while its body is read."""
        if request.method == "DELETE":
            return await self._end_session(request)
        return await super().handle_async_request(request)

    async def _end_session(self, request: httpx2.Request) -> httpx2.Response:
        """Notify the server that its session ends, and wait briefly for the status alone."""
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                response = await self.send(request)
                await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("the end of the session is not confirmed", request=request) from None
        return httpx2.Response(response.status_code)
