"""Runs the server over one of its transports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.mcp.http.app import PATH, McpApp
from gateway.mcp.server import open_server
from gateway.mcp.settings import McpSettings
from gateway.mcp.stdio import serve_stdio
from gateway.web.serving import log_to_stderr, serve_app
from pagantic_common.rpc.process.protection import protect_memory
from pagantic_common.settings import load_settings


def run_stdio(address: str) -> None:
    """Serve the client that started this program."""
    protect_memory()
    log_to_stderr()
    settings = load_settings(McpSettings)
    asyncio.run(_serve_stdio(settings, address))


def run_http(address: str, port: int | None, announce: Callable[[str], None]) -> None:
    """Serve clients over HTTP until SIGINT or SIGTERM. Raises OSError if the port cannot be used.

    `announce` receives the URL.
    """
    protect_memory()
    log_to_stderr()
    settings = load_settings(McpSettings)
    if port is not None:
        settings = settings.model_copy(update={"port": port})
    asyncio.run(serve_http(settings, address, announce))


async def _serve_stdio(settings: McpSettings, address: str) -> None:
    async with open_server(settings, address) as (server, _callers):
        await serve_stdio(server, max_bytes=settings.max_message_bytes)


async def serve_http(settings: McpSettings, address: str, announce: Callable[[str], None]) -> None:
    """Serve over HTTP until a signal ends the program."""
    async with open_server(settings, address) as (server, callers):
        app = McpApp(server, settings, callers)
        async with app.running():
            await serve_app(app, settings, PATH, announce)
