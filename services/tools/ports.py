"""The interfaces through which the app reaches tools, servers and rate limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from pagantic_common.domain.messages import ToolDefinition, ToolProgress
from pagantic_common.workers.fair_places import FairPlaces
from services.tools.core.servers import FilledPrompt, Page, Prompt, Resource, ResourceContents, ServerSpec, ToolList

Report = Callable[[ToolProgress], None]
MAX_WAITING_CALLS = 1024


class ToolUnavailable(Exception):
    """The tool is unreachable or was lost during the call. The message states the reason and a remedy.

    `may_have_run` states whether the call may have had an effect.
    """

    def __init__(self, message: str, *, may_have_run: bool = False) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run


class ServerLost(Exception):
    """A server cannot be connected, or its connection has ended. The message states the reason."""


class Tool(Protocol):
    """A tool that the model can call."""

    @property
    def definition(self) -> ToolDefinition:
        """The tool's name, purpose and parameters."""

    @property
    def unavailable_reason(self) -> str:
        """The reason why the tool cannot be called now, or an empty string if it can."""

    @property
    def is_remote(self) -> bool:
        """Whether a call may depend on another system. If so, unanswered calls open a circuit breaker."""

    @property
    def places(self) -> FairPlaces | None:
        """The places for concurrent calls, or None if there is no limit. Several tools may share their places.

        A call holds a place while it runs. If work continues after the call, `keep_place_until` extends the hold.
        """

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the result for arguments that satisfy the schema. Raises ToolFailed and ToolUnavailable.

        The call can be cancelled. `report` receives the progress of the call in the event loop.
        """


@runtime_checkable
class KnowsOutcomes(Protocol):
    """A tool that knows the outcome of its calls."""

    async def outcome(self, effect_id: str) -> str:
        """Return the result of the call with this effect id.

        Raises ToolNotRun if the call has and will have no effect. After any other error, the outcome is unknown.
        """


def make_places(count: int, of_tenant: int) -> FairPlaces:
    """Return places for `count` concurrent calls, at most `of_tenant` per tenant."""
    return FairPlaces(count, of_owner=of_tenant, waiting=MAX_WAITING_CALLS, resource="a place of the tool")


class McpSession(Protocol):
    """A connection to a Model Context Protocol server. Every method raises ServerLost once the connection has ended."""

    @property
    def protocol_version(self) -> str:
        """The protocol version that client and server use."""

    async def wait_for_change(self) -> None:
        """Wait until the tools may have changed or the connection may have ended. Raises ServerLost."""

    async def list_tools(self) -> ToolList:
        """Return the tools, including defective tools, in the server's order and within the session's limits."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the result as text. Raises ToolFailed. Cancelling this call also cancels it on the server."""

    async def list_resources(self, page_token: str) -> Page[Resource]:
        """Return a page of resources. Raises InvalidRequest if the server refuses the request."""

    async def read_resource(self, uri: str) -> Sequence[ResourceContents]:
        """Return the contents of a resource. Raises InvalidRequest if the server refuses the request."""

    async def list_prompts(self, page_token: str) -> Page[Prompt]:
        """Return a page of prompts. Raises InvalidRequest if the server refuses the request."""

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> FilledPrompt:
        """Return a prompt filled in with the arguments. Raises InvalidRequest if the server refuses the request."""


OpenSession = Callable[[ServerSpec], AbstractAsyncContextManager[McpSession]]
"""Connects a server until the context ends. Entering raises ServerLost within a time of its own."""


class Rates(Protocol):
    """The rate limits of tools."""

    async def take(self, tool: str) -> str:
        """Count a call. Returns the reason that it exceeds the rate, or an empty string if it does not."""
