"""The ports of the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from pagantic_common.domain.messages import ToolDefinition, ToolProgress
from services.tools.core.servers import FilledPrompt, Page, Prompt, Resource, ResourceContents, ServerSpec, ToolList

Report = Callable[[ToolProgress], None]


class ToolUnavailable(Exception):
    """The tool cannot be reached now, or was lost during the call; the message gives the reason and a remedy."""


class ServerLost(Exception):
    """A server cannot be connected, or its connection ended; the message says why."""


class Tool(Protocol):
    """A tool that the model can call."""

    @property
    def definition(self) -> ToolDefinition:
        """Its name, purpose and parameters."""

    @property
    def unavailable_reason(self) -> str:
        """The reason why it cannot be called now; empty when it can."""

    async def run(self, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the result for arguments that satisfy the schema; raises ToolFailed and ToolUnavailable.

        Can be cancelled. `report` is called in the event loop with how far the run is.
        """


class McpSession(Protocol):
    """A connection to a Model Context Protocol server. Every method raises ServerLost once the connection ended."""

    @property
    def protocol_version(self) -> str:
        """The version of the protocol that both ends speak."""

    async def wait_for_change(self) -> None:
        """Return when the tools may have changed, or the connection may have ended; raises ServerLost."""

    async def list_tools(self) -> ToolList:
        """Return the tools in the server's order, also those with a defect, within the session's bounds."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any], report: Report) -> str:
        """Return the result as text; raises ToolFailed. Cancelling it cancels the call at the server."""

    async def list_resources(self, page_token: str) -> Page[Resource]:
        """Return a page of resources; raises InvalidRequest for a request that the server refuses."""

    async def read_resource(self, uri: str) -> Sequence[ResourceContents]:
        """Return the contents of a resource; raises InvalidRequest for a request that the server refuses."""

    async def list_prompts(self, page_token: str) -> Page[Prompt]:
        """Return a page of prompts; raises InvalidRequest for a request that the server refuses."""

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> FilledPrompt:
        """Return a prompt filled in with arguments; raises InvalidRequest for a request that the server refuses."""


OpenSession = Callable[[ServerSpec], AbstractAsyncContextManager[McpSession]]
"""Connects a server until the context ends. Entering raises ServerLost within a time of its own."""


class Rates(Protocol):
    """Rate limits of tools."""

    async def take(self, tool: str) -> str:
        """Count a call; return why it exceeds the rate, empty if it does not."""
