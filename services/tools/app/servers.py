"""Manages the service's Model Context Protocol servers, and the rules for registering further servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Conflict, NotFound, PreconditionFailed, Unavailable
from services.tools.app.connection import ConnectionLimits, ServerConnection
from services.tools.app.registry import ToolRegistry
from services.tools.core.allowlists import HostAllowlist, ProgramAllowlist
from services.tools.core.servers import ProgramTransport, ServerSpec, ServerState, ServerStatus, check_server_name
from services.tools.ports import McpSession, OpenSession, Tool

START_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits on the servers that callers may register. The configured servers are always allowed."""

    programs: ProgramAllowlist = field(default_factory=ProgramAllowlist)
    hosts: HostAllowlist = field(default_factory=HostAllowlist)
    max_servers: int = 16


@dataclass(slots=True)
class _Kept:
    connection: ServerConnection
    running: asyncio.Task[None]


class McpServers:
    """Keeps servers connected, by name. Each connection is an asyncio task until removal or shutdown."""

    def __init__(
        self,
        registry: ToolRegistry,
        open_session: OpenSession,
        admission: Admission,
        limits: ConnectionLimits,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._registry = registry
        self._open_session = open_session
        self._admission = admission
        self._limits = limits
        self._clock = clock
        self._chance = chance
        self._kept: dict[str, _Kept] = {}

    async def start(self, specs: Iterable[ServerSpec]) -> None:
        """Connect the configured servers, and wait a while for their tools. A failed server is retried later."""
        tried = [asyncio.create_task(self._keep(spec).connection.is_tried.wait()) for spec in specs]
        if not tried:
            return
        try:
            await asyncio.wait(tried, timeout=START_PATIENCE_S)
        finally:
            for waiting in tried:
                waiting.cancel()
            await asyncio.wait(tried)

    async def register(self, spec: ServerSpec) -> Sequence[Tool]:
        """Connect a server for a caller and return its tools.

        Raises PreconditionFailed if the server exceeds the configured limits, Conflict if its name is taken, and
        Unavailable if it is unreachable. An unreachable server is removed.
        """
        connection = self._keep(self._allowed(spec)).connection
        try:
            await connection.is_tried.wait()
        except asyncio.CancelledError:
            await self.remove(spec.name)
            raise
        status = connection.status
        if status.state is not ServerState.CONNECTED:
            await self.remove(spec.name)
            raise Unavailable(f"server {spec.name!r} cannot be connected: {status.reason}")
        return connection.tools

    def _allowed(self, spec: ServerSpec) -> ServerSpec:
        """Return the server with the hosts that it may call. Raises PreconditionFailed if the server is not allowed."""
        check_server_name(spec.name)
        transport, admission = spec.transport, self._admission
        if isinstance(transport, ProgramTransport):
            if not admission.programs.has(transport.argv):
                raise PreconditionFailed(
                    f"program {transport.describe()[:200]!r} is not allowed: add it to MCP_PROGRAMS"
                )
            return spec
        if not admission.hosts.has_host(transport.host, transport.port):
            raise PreconditionFailed(f"host {transport.describe()[:200]!r} is not allowed: add it to MCP_HOSTS")
        return replace(spec, transport=replace(transport, hosts=admission.hosts))

    def _keep(self, spec: ServerSpec) -> _Kept:
        if spec.name in self._kept:
            raise Conflict(f"a server named {spec.name!r} is registered already: remove it, or choose another")
        limit = self._admission.max_servers
        if len(self._kept) >= limit:
            raise PreconditionFailed(f"{len(self._kept)} servers are registered, at most {limit} may be: remove one")
        connection = ServerConnection(
            spec, self._registry, self._open_session, self._limits, clock=self._clock, chance=self._chance
        )
        kept = _Kept(connection, asyncio.create_task(connection.run(), name=f"mcp server {spec.name}"))
        self._kept[spec.name] = kept
        return kept

    async def remove(self, name: str) -> None:
        """Disconnect a server and remove its tools. Raises NotFound."""
        kept = self._kept.pop(name, None)
        if kept is None:
            raise NotFound(self._describe_unknown(name))
        await _end(kept)

    def statuses(self) -> list[ServerStatus]:
        """Return the status of every server, sorted by name."""
        return [self._kept[name].connection.status for name in sorted(self._kept)]

    def session_of(self, name: str) -> McpSession:
        """Return the open session of a server. Raises NotFound or Unavailable."""
        kept = self._kept.get(name)
        if kept is None:
            raise NotFound(self._describe_unknown(name))
        return kept.connection.session

    async def close(self) -> None:
        """Disconnect every server."""
        ending = [_end(kept) for kept in self._kept.values()]
        self._kept.clear()
        await asyncio.gather(*ending)

    def _describe_unknown(self, name: str) -> str:
        registered = ", ".join(map(repr, sorted(self._kept))) or "none"
        return f"no server is named {name[:80]!r}: registered are {registered}"


async def _end(kept: _Kept) -> None:
    kept.running.cancel()
    kept.connection.forget()  # frees the names at once for another server; a cancelled connection adds no tools
    await asyncio.gather(kept.running, return_exceptions=True)
