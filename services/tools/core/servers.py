"""Servers of the Model Context Protocol: their transports and their tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from pagantic_common.domain.addresses import address_of
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolSafety
from services.tools.core.allowlists import HostAllowlist

ItemT = TypeVar("ItemT")

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def check_server_name(name: str) -> None:
    """Raise InvalidRequest if a name cannot be the prefix of tool names."""
    if _SERVER_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"server name {name[:80]!r} must have 1 to 32 letters, digits, '_' or '-' and begin with a letter or digit"
        )


@dataclass(frozen=True, slots=True)
class ProgramTransport:
    """A program that speaks the protocol on its standard streams. `environment` extends a minimal environment."""

    argv: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str | None = None

    def describe(self) -> str:
        """Return a description for listings. It omits the arguments, which may hold secrets."""
        return self.argv[0]


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The credentials for an authorization server. Tokens are requested only from `issuer`."""

    client_id: str
    client_secret: str = field(repr=False)
    issuer: str
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class HttpTransport:
    """A streamable HTTP server. Requests go only to the hosts in `hosts`."""

    url: str = field(repr=False)
    host: str
    port: int
    hosts: HostAllowlist = field(default_factory=HostAllowlist)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    credentials: ClientCredentials | None = None

    @classmethod
    def parse(cls, url: str) -> HttpTransport:
        """Return the transport for a URL. It may not call any host yet. Raises InvalidRequest."""
        try:
            parts = urlsplit(url)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        except ValueError:
            raise InvalidRequest("the url cannot be read: write http://HOST:PORT/PATH or https://HOST/PATH") from None
        if not port or not parts.hostname or parts.username is not None or not url.isprintable() or " " in url:
            raise InvalidRequest("the url must begin with http:// or https:// and a host, and have no user or password")
        return cls(url, parts.hostname, port)

    def describe(self) -> str:
        """Return a description for listings. It omits the path and the query, which may hold secrets."""
        return address_of(self.host, self.port)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server to keep connected. Its annotations determine the safety classes of its tools only if it is trusted."""

    name: str
    transport: ProgramTransport | HttpTransport
    trusts_annotations: bool = False
    call_timeout_s: float | None = None


class ServerState(StrEnum):
    """The state of the connection to a server."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The status of a server for listings. `left_out` holds the reason for each unregistered tool."""

    name: str
    transport: str
    state: ServerState
    reason: str
    protocol_version: str
    tool_count: int
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ToolHints:
    """A server's hints about a tool. The protocol defines the defaults."""

    is_read_only: bool = False
    is_destructive: bool = True
    is_idempotent: bool = False
    is_open_world: bool = True

    @property
    def safety(self) -> ToolSafety:
        """The safety class of the tool if the hints are true."""
        if self.is_read_only:
            return ToolSafety.READ
        if self.is_destructive or self.is_open_world:
            return ToolSafety.EXTERNAL
        return ToolSafety.WRITE


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool with its name on the server. `defect` is the reason why it cannot be used, or an empty string."""

    name: str
    description: str
    parameters_json: str
    hints: ToolHints = ToolHints()
    defect: str = ""

    @property
    def size_bytes(self) -> int:
        """The size in bytes of the tool's entry in a list of tools."""
        return sum(len(text.encode(errors="replace")) for text in (self.name, self.description, self.parameters_json))


@dataclass(frozen=True, slots=True)
class ToolList:
    """The tools that a server lists. `others` describes the number of omitted tools and the reason."""

    tools: tuple[OfferedTool, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resource:
    """Data that a server offers. `size_bytes` is None if the server does not report the size."""

    uri: str
    name: str
    title: str
    description: str
    mime_type: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class ResourceContents:
    """The data of a resource: text or bytes."""

    uri: str
    mime_type: str
    data: str | bytes


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt."""

    name: str
    description: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class Prompt:
    """A template of messages that a server fills in."""

    name: str
    title: str
    description: str
    arguments: tuple[PromptArgument, ...]


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message of a prompt. Content other than text is described in words."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class FilledPrompt:
    """A prompt with its arguments filled in."""

    description: str
    messages: tuple[PromptMessage, ...]


@dataclass(frozen=True, slots=True)
class Page(Generic[ItemT]):
    """A part of a list. `next_token` is an empty string on the last page."""

    items: tuple[ItemT, ...]
    next_token: str = ""
