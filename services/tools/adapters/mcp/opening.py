"""Opens sessions: opens a server's transport, runs the SDK's client on it, and describes failures of both."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import Client, MCPError, types
from mcp.client import Transport
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from pagantic_common.telemetry.logging import get_logger, report_bug
from services.tools.adapters.http_guard import Bounds, GuardedTransport, guarded_client
from services.tools.adapters.mcp.session import SdkSession, words_of
from services.tools.adapters.mcp.stdio import StdioTransport
from services.tools.core.servers import HttpTransport, ProgramTransport, ServerSpec
from services.tools.ports import McpSession, ServerLost

_END_TIMEOUT_S = 2.0
log = get_logger(__name__)

# Connections besides calls: streams of changes, and requests for lists.
_MORE_CONNECTIONS = 16
_EXPECTED = (MCPError, OAuthFlowError, httpx2.HTTPError, httpx2.StreamError, OSError, ValidationError, RuntimeError)


class SessionTransport(GuardedTransport):
    """A guarded transport that limits the wait for the end of a session. The SDK limits the events of streams."""

    uncounted_type = "text/event-stream"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises RequestRefused, or ResponseTooLarge while the body is read."""
        if request.method == "DELETE":
            return await self._end_session(request)
        return await super().handle_async_request(request)

    async def _end_session(self, request: httpx2.Request) -> httpx2.Response:
        """Inform the server that the session ends, and wait briefly for the status of the response."""
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                response = await self.send(request)
                await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("the end of the session is not confirmed", request=request) from None
        return httpx2.Response(response.status_code)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a session. `request_timeout_s` limits connecting and every request except tool calls."""

    max_message_bytes: int = 1024 * 1024
    max_tools: int = 128
    max_tool_bytes: int = 32_768
    max_calls: int = 64
    request_timeout_s: float = 30.0


class SessionOpener:
    """Opens sessions within limits.

    Servers may ask their client to sample a model, to ask the user or to list folders. The service does not declare
    these capabilities and refuses, because there is no user to answer. Tests replace `elicit`, and set `auth` instead
    of credentials.
    """

    def __init__(
        self, limits: SessionLimits, *, auth: httpx2.Auth | None = None, elicit: ElicitationFnT | None = None
    ) -> None:
        self._limits = limits
        self._auth = auth
        self._elicit = elicit

    @asynccontextmanager
    async def open(self, spec: ServerSpec) -> AsyncIterator[McpSession]:
        """Keep a server connected until the context ends. Raises ServerLost, including for connection errors."""
        try:
            async with AsyncExitStack() as stack:
                yield await self._enter(stack, spec)
        except Exception as error:
            raise ServerLost(_reason_of(error, spec.name)) from error

    async def _enter(self, stack: AsyncExitStack, spec: ServerSpec) -> SdkSession:
        has_news = asyncio.Event()
        limit_s = self._limits.request_timeout_s
        timer = asyncio.timeout(limit_s)
        transport, stdio = await self._transport_of(stack, spec)
        try:
            async with timer:
                client = await stack.enter_async_context(self._client_on(transport, has_news))
        except Exception as error:
            if stdio is not None and stdio.end_reason:
                raise ServerLost(stdio.end_reason) from error
            if isinstance(error, TimeoutError) and timer.expired():
                raise ServerLost(f"it did not answer within {limit_s:g} s") from error
            raise
        session = SdkSession(client, has_news, self._limits.max_tools, self._limits.max_tool_bytes)
        stack.callback(session.end, "its session was closed")
        if stdio is not None:
            _keep(stack, _note_end(stdio, session))
        if _can_listen(client):
            _keep(stack, session.follow_changes())
        return session

    async def _transport_of(self, stack: AsyncExitStack, spec: ServerSpec) -> tuple[Transport, StdioTransport | None]:
        limits = self._limits
        if isinstance(spec.transport, ProgramTransport):
            stdio = StdioTransport(spec.transport, spec.name, limits.max_message_bytes)
            return stdio.open(), stdio
        http = spec.transport
        bounds = Bounds(http.hosts, "MCP_HOSTS", limits.max_message_bytes, "raise MCP_MAX_MESSAGE_BYTES")
        transport = SessionTransport(bounds, max_connections=limits.max_calls + _MORE_CONNECTIONS)
        client = guarded_client(transport, http.headers, self._auth or credentials_auth(http))
        await stack.enter_async_context(client)
        opened = streamable_http_client(http.url, http_client=client, max_sse_event_size=limits.max_message_bytes)
        return opened, None

    def _client_on(self, transport: Transport, has_news: asyncio.Event) -> Client:
        async def on_message(message: IncomingMessage) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                has_news.set()

        return Client(
            transport,
            read_timeout_seconds=self._limits.request_timeout_s,
            elicitation_callback=self._elicit,
            message_handler=on_message,
            client_info=types.Implementation(name="pagantic", version=importlib.metadata.version("pagantic")),
            cache=None,
        )


async def _note_end(stdio: StdioTransport, session: SdkSession) -> None:
    session.end(await stdio.wait_until_ended())


def _can_listen(client: Client) -> bool:
    tools = client.server_capabilities.tools
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and bool(tools.list_changed)


def _keep(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run the work as an asyncio task until the stack closes."""
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


def _reason_of(error: Exception, server: str) -> str:
    """Return the reason for a failed connection. For an exception group, it is the reason of the first error."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ServerLost):
        return str(error)
    if isinstance(error, _EXPECTED):
        return words_of(error) or type(error).__name__
    return report_bug(log, error, server=server)


def quiet_sdk() -> None:
    """Prevent the SDK from logging server content and full addresses. The service itself logs important events."""
    for name in ("mcp", "client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


class TokensInMemory:
    """Holds tokens in memory until the session ends."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Return the newest tokens, or None if there are no tokens."""
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store the tokens."""
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration of the client, or None if it is not registered."""
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the registration of the client."""
        self._client = client_info


def credentials_auth(http: HttpTransport) -> httpx2.Auth | None:
    """Return the authentication that obtains tokens for a server, or None without credentials."""
    credentials = http.credentials
    if credentials is None:
        return None
    return ClientCredentialsOAuthProvider(
        http.url,
        TokensInMemory(),
        credentials.client_id,
        credentials.client_secret,
        scope=credentials.scope,
        issuer=credentials.issuer,
    )
