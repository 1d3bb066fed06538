"""Wires the parts of the service that reach Model Context Protocol servers and HTTP APIs."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import InvalidRequest
from services.tools.adapters.mcp.configuration import read_servers
from services.tools.adapters.openapi.configuration import read_apis
from services.tools.adapters.openapi.opening import ApiLimits, open_client, read_api, register_api
from services.tools.app.connection import ConnectionLimits
from services.tools.app.registry import ToolRegistry
from services.tools.app.servers import Admission, McpServers
from services.tools.core.allowlists import HostAllowlist, ProgramAllowlist
from services.tools.core.servers import ServerSpec
from services.tools.ports import McpSession
from services.tools.settings import ToolsSettings

if TYPE_CHECKING:
    from services.tools.adapters.mcp.opening import SessionOpener


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Limits of MCP servers and HTTP APIs that are not settings.

    `max_servers` limits the number of servers at the time when a caller registers another server. `request_timeout_s`
    limits connecting a server, and requests for its lists, resources and prompts.
    """

    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_servers: int = 16
    request_timeout_s: float = 30.0
    api: ApiLimits = field(default_factory=ApiLimits)


SOURCE_LIMITS = SourceLimits()


@asynccontextmanager
async def open_mcp_servers(
    settings: ToolsSettings, registry: ToolRegistry, limits: SourceLimits, clock: Clock
) -> AsyncIterator[McpServers]:
    """Connect the configured servers until the context ends. Raises InvalidRequest if a setting is invalid."""
    admission = _admission_of(settings, limits.max_servers)
    specs = []
    if settings.mcp_servers is not None:
        specs = read_servers(settings.mcp_servers, os.environ, admission.hosts)
    connection_limits = replace(limits.connection, max_tools=settings.mcp_max_tools)

    @asynccontextmanager
    async def open_session(spec: ServerSpec) -> AsyncIterator[McpSession]:
        opener = await asyncio.to_thread(_session_opener, settings, limits)
        async with opener.open(spec) as session:
            yield session

    servers = McpServers(registry, open_session, admission, connection_limits, clock=clock)
    try:
        await servers.start(specs)
        yield servers
    finally:
        await servers.close()


def _session_opener(settings: ToolsSettings, limits: SourceLimits) -> SessionOpener:
    """Return the session opener. The first call imports the protocol's packages, which takes half a second."""
    from services.tools.adapters.mcp.opening import SessionLimits, SessionOpener, quiet_sdk  # noqa: PLC0415

    quiet_sdk()
    return SessionOpener(
        SessionLimits(
            max_message_bytes=settings.mcp_max_message_bytes,
            max_tools=settings.mcp_max_tools,
            max_tool_bytes=limits.connection.max_tool_bytes,
            max_calls=limits.connection.max_calls,
            request_timeout_s=limits.request_timeout_s,
        )
    )


@asynccontextmanager
async def open_apis(settings: ToolsSettings, registry: ToolRegistry, limits: SourceLimits) -> AsyncIterator[None]:
    """Register tools for the configured documents until the context ends. Raises InvalidRequest."""
    specs = []
    if settings.openapi is not None:
        specs = read_apis(settings.openapi, os.environ)
    api_limits = replace(limits.api, max_tools=settings.openapi_max_tools)
    async with AsyncExitStack() as stack:
        for spec in specs:
            translation = await asyncio.to_thread(read_api, spec)
            client = await stack.enter_async_context(open_client(spec, api_limits))
            register_api(spec, translation, registry, client, api_limits)
        yield


def _admission_of(settings: ToolsSettings, max_servers: int) -> Admission:
    try:
        beginnings = tuple(tuple(shlex.split(line)) for line in settings.mcp_programs)
    except ValueError as error:
        raise InvalidRequest(f"MCP_PROGRAMS cannot be read: {error}") from None
    try:
        hosts = HostAllowlist.parse(settings.mcp_hosts)
    except InvalidRequest as error:
        raise InvalidRequest(f"MCP_HOSTS: {error}") from None
    return Admission(ProgramAllowlist(beginnings), hosts, max_servers)
