"""`/healthz` and `/readyz`: any client may request them at any rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import PlainTextResponse, Response

from gateway.http.operations import PROBE, Access, Operation

IsReady = Callable[[], Awaitable[bool]]


async def _live(_is_ready: IsReady) -> Response:
    """Report that the gateway is running."""
    return PlainTextResponse("ok\n")


async def _ready(is_ready: IsReady) -> Response:
    """Report whether the orchestrator accepts requests."""
    if not await is_ready():
        return PlainTextResponse("the orchestrator takes no requests now\n", 503)
    return PlainTextResponse("ok\n")


# Each endpoint is called with a function that returns whether the orchestrator accepts requests.
PROBES = (
    Operation(PROBE, "GET /healthz", _live, "isLive", access=Access.PROBE),
    Operation(PROBE, "GET /readyz", _ready, "isReady", access=Access.PROBE),
)
