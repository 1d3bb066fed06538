"""Runs the server over one of its transports."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import uvicorn

from gateway.mcp.http.app import PATH, McpApp
from gateway.mcp.http.listening import address_of, listen
from gateway.mcp.http.probes import answering_probes
from gateway.mcp.server import open_server
from gateway.mcp.settings import McpSettings
from gateway.mcp.stdio import serve_stdio
from pagantic_common.rpc.process.memory import return_freed_memory
from pagantic_common.settings import load_settings

MAX_HEADER_BYTES = 32 * 1024


def run_stdio(address: str) -> None:
    """Serve the client that started this program."""
    _log_to_stderr()
    settings = load_settings(McpSettings)
    asyncio.run(_serve_stdio(settings, address))


def run_http(address: str, port: int | None, announce: Callable[[str], None]) -> None:
    """Serve clients over HTTP until SIGINT or SIGTERM; `announce` is told the URL. Raises OSError without the port."""
    _log_to_stderr()
    settings = load_settings(McpSettings)
    if port is not None:
        settings = settings.model_copy(update={"port": port})
    asyncio.run(serve_http(settings, address, announce))


async def _serve_stdio(settings: McpSettings, address: str) -> None:
    async with open_server(settings, address) as (server, _callers):
        await serve_stdio(server, max_bytes=settings.max_message_bytes)


async def serve_http(settings: McpSettings, address: str, announce: Callable[[str], None]) -> None:
    """Serve over HTTP until a signal."""
    async with open_server(settings, address) as (server, callers):
        app = McpApp(server, settings, callers.refuse_unknown)
        async with app.running(), returning_freed_memory():
            await serve_app(app, settings, announce)


@asynccontextmanager
async def returning_freed_memory() -> AsyncIterator[None]:
    """Give freed memory back to the system from time to time within the block."""
    returning = asyncio.create_task(return_freed_memory())
    try:
        yield
    finally:
        returning.cancel()


async def serve_app(app: McpApp, settings: McpSettings, announce: Callable[[str], None]) -> None:
    """Serve an application that runs, and announce it once every port is open; raises OSError for one that is not."""
    with listen(settings.host, settings.port) as listener:
        async with answering_probes(settings):
            announce(f"http://{address_of(*listener.getsockname()[:2])}{PATH}")
            await http_server(app, settings).serve(sockets=[listener])


def http_server(app: McpApp, settings: McpSettings) -> uvicorn.Server:
    """Return the server of an application, with limits on what it takes."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=settings.max_connections,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=round(settings.drain_s),
    )
    return uvicorn.Server(config)


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
