"""Keeps a Model Context Protocol server connected and its tools registered.

The tools of a lost server stay registered and report the reason why they cannot be called. The server is reconnected
after a wait that grows with each failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pagantic_common.domain.backoff import Backoff
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from pagantic_common.telemetry.logging import get_logger
from services.tools.app.registry import NUMBER_MARK, ToolRegistry
from services.tools.core.remote_names import prefixed_name
from services.tools.core.servers import OfferedTool, ServerSpec, ServerState, ServerStatus, ToolList
from services.tools.ports import McpSession, OpenSession, Report, ServerLost, Tool, ToolUnavailable, make_places

_MAX_DOUBLINGS = 30
log = get_logger(__name__)

_numbers = count(1)  # a server registered again must not own the tools of its earlier registration


def wait_s(failures: int, *, first_s: float, max_s: float, chance: float) -> float:
    """Return the wait in seconds after `failures` consecutive failures.

    The wait doubles from `first_s` to `max_s`. `chance`, between 0 and 1, removes up to half of the wait, so that
    clients do not all reconnect at the same moment.
    """
    doubled_s = first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
    return min(doubled_s, max_s) * (1 - chance / 2)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a server's connection.

    The list of tools is read again after each change and every `refresh_s`, but not sooner than `settle_s` after a
    change. A lost server is reconnected after `reconnect_s`, which doubles up to `max_reconnect_s`.
    """

    max_calls: int = 64
    max_tools: int = 128
    max_tool_bytes: int = 32_768
    refresh_s: float = 60.0
    settle_s: float = 0.2
    reconnect_s: float = 0.5
    max_reconnect_s: float = 60.0


class ServerConnection:
    """Owns the session of a server. `run` connects the server; other methods may be called at any time."""

    def __init__(
        self,
        spec: ServerSpec,
        registry: ToolRegistry,
        open_session: OpenSession,
        limits: ConnectionLimits,
        *,
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        self._spec = spec
        self._registry = registry
        self._open_session = open_session
        self._limits = limits
        self._clock = clock
        self._chance = chance
        self._source = f"mcp server {spec.name}{NUMBER_MARK}{next(_numbers)}"
        self.places = make_places(limits.max_calls, max(1, limits.max_calls // 2))
        self._session: McpSession | None = None
        self._state = ServerState.CONNECTING
        self._reason = "it is being connected"
        self._protocol_version = ""
        self._offered: ToolList | None = None
        self._left_out: dict[str, str] = {}
        self.is_tried = asyncio.Event()

    @property
    def unavailable_reason(self) -> str:
        """The reason why the server's tools cannot be called now, or an empty string if they can.

        Every caller may read this reason, so details, which may name programs and hosts, appear only in `status`.
        """
        if self._session is not None and self._state is ServerState.CONNECTED:
            return ""
        return f"its server {self._spec.name!r} is not connected"

    @property
    def status(self) -> ServerStatus:
        """The status of the server for listings."""
        return ServerStatus(
            name=self._spec.name,
            transport=self._spec.transport.describe(),
            state=self._state,
            reason=self._reason,
            protocol_version=self._protocol_version,
            tool_count=len(self.tools),
            left_out=self._left_out,
        )

    @property
    def session(self) -> McpSession:
        """The open session. Raises Unavailable if there is no open session."""
        if self._session is None or self.unavailable_reason:
            reason = f"server {self._spec.name!r} is not connected: {self._reason}"
            raise Unavailable(reason, retry_after_s=self._limits.reconnect_s)
        return self._session

    @property
    def tools(self) -> Sequence[Tool]:
        """The server's registered tools, sorted by name."""
        return self._registry.list_of(self._source)

    async def run(self) -> None:
        """Connect the server, and reconnect it whenever it is lost, until cancelled."""
        limits = self._limits
        failures = 0
        while True:
            started_s = self._clock.monotonic_s()
            try:
                async with self._open_session(self._spec) as session:
                    await self._take_up(session)
                    await self._follow(session)
            except ServerLost as lost:
                _raise_if_cancelled()  # a cancellation may have ended the session
                self._lose(str(lost))
            finally:
                self._session = None
            if self._clock.monotonic_s() - started_s > limits.max_reconnect_s:
                failures = 0
            failures += 1
            backoff = Backoff(limits.reconnect_s, limits.max_reconnect_s)
            await self._clock.sleep(backoff.wait_s(failures, chance=self._chance()))

    def forget(self) -> None:
        """Remove the server's tools from the registry."""
        self._registry.replace(self._source, [])

    async def call_tool(self, name: str, arguments: Mapping[str, Any], report: Report) -> str:
        """Call a tool by its name on the server. Raises ToolUnavailable."""
        session = self._session
        if session is None:
            raise ToolUnavailable(self.unavailable_reason)
        try:
            return await session.call_tool(name, arguments, report)
        except ServerLost as lost:
            raise ToolUnavailable(
                f"server {self._spec.name!r} was lost during the call: {lost}",
                may_have_run=True,
            ) from None

    async def _take_up(self, session: McpSession) -> None:
        self._protocol_version = session.protocol_version
        self._session = session
        await self._refresh(session)
        self._state = ServerState.CONNECTED
        self._reason = ""
        self.is_tried.set()
        log.info("mcp server connected", server=self._spec.name, protocol_version=session.protocol_version)

    async def _follow(self, session: McpSession) -> None:
        while True:
            try:
                async with asyncio.timeout(self._limits.refresh_s):
                    await session.wait_for_change()
                await self._clock.sleep(self._limits.settle_s)
            except TimeoutError:
                log.debug("mcp server is asked for its tools again", server=self._spec.name)
            await self._refresh(session)

    async def _refresh(self, session: McpSession) -> None:
        offered = await session.list_tools()
        if offered == self._offered:
            return
        self._offered = offered
        fitting, left_out = self._select(offered.tools)
        left_out |= self._registry.replace(
            self._source, fitting, max_tools=self._limits.max_tools, setting="MCP_MAX_TOOLS"
        )
        registered = {tool.definition.name for tool in self.tools}
        self._left_out = {_name_beside(registered, name): reason for name, reason in left_out.items()}
        self._left_out |= offered.others
        for name, reason in self._left_out.items():
            log.warning("a tool of an mcp server is left out", server=self._spec.name, tool=name[:80], reason=reason)

    def _select(self, offered: Sequence[OfferedTool]) -> tuple[list[RemoteTool], dict[str, str]]:
        """Return the usable tools of an acceptable size, and the reason for each omitted tool by name."""
        fitting: list[RemoteTool] = []
        left_out: dict[str, str] = {}
        for tool in offered:
            name = prefixed_name(self._spec.name, tool.name)
            if tool.defect:
                left_out[name] = tool.defect
            elif tool.size_bytes > self._limits.max_tool_bytes:
                limit = self._limits.max_tool_bytes
                left_out[name] = f"it has {tool.size_bytes} bytes, at most {limit} are taken: shorten its schema"
            else:
                fitting.append(self._tool_of(name, tool))
        return fitting, left_out

    def _tool_of(self, name: str, offered: OfferedTool) -> RemoteTool:
        hints, safety, is_idempotent = offered.hints, ToolSafety.EXTERNAL, False
        if self._spec.trusts_annotations:
            safety = hints.safety
            is_idempotent = hints.is_read_only or hints.is_idempotent
        definition = ToolDefinition(
            name=name,
            description=offered.description,
            parameters_json=offered.parameters_json,
            safety=safety,
            idempotent=is_idempotent,
            timeout_s=self._spec.call_timeout_s,
        )
        return RemoteTool(definition, offered.name, self)

    def _lose(self, reason: str) -> None:
        self._state = ServerState.LOST
        self._reason = reason
        self.is_tried.set()
        log.warning("mcp server lost", server=self._spec.name, reason=reason)


def _name_beside(registered: Collection[str], name: str) -> str:
    """Return a name for an omitted tool that is distinct from the names of registered tools."""
    return f"{name} (listed again)" if name in registered else name


def _raise_if_cancelled() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class RemoteTool:
    """A tool that a server runs. All tools of a server share its places."""

    is_remote = True

    def __init__(self, definition: ToolDefinition, remote_name: str, connection: ServerConnection) -> None:
        self.definition = definition
        self.places = connection.places
        self._remote_name = remote_name
        self._connection = connection

    @property
    def unavailable_reason(self) -> str:
        """The reason why the server cannot be called, or an empty string if it can."""
        return self._connection.unavailable_reason

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the response of the server."""
        return await self._connection.call_tool(self._remote_name, arguments, report)
