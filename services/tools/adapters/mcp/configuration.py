"""Reads the configured servers from `mcpServers` files, which other clients of the protocol also use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.storage.json_file import read_json_file
from services.tools.adapters.file_entry import FileEntry
from services.tools.core.allowlists import HostAllowlist
from services.tools.core.servers import (
    ClientCredentials,
    HttpTransport,
    ProgramTransport,
    ServerSpec,
    check_server_name,
)


class _OAuth(FileEntry):
    client_id: str
    client_secret: SecretStr
    issuer: str
    scope: str | None = None


class _Server(FileEntry):
    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    command: Annotated[str, Field(min_length=1)] | None = None
    args: tuple[str, ...] = ()
    env: dict[str, SecretStr] = Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    oauth: _OAuth | None = None
    disabled: bool = False
    trust_annotations: bool = False
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None


class _File(FileEntry):
    mcp_servers: dict[str, _Server]


def read_servers(path: Path, variables: Mapping[str, str], hosts: HostAllowlist) -> list[ServerSpec]:
    """Return the enabled servers of a file.

    `${NAME}` and `${NAME:-default}` in a value stand for an environment variable. A server with a URL may call `hosts`
    and the hosts of the URL and of its authorization server. Raises InvalidRequest with a message that names the error.
    """
    content = read_json_file(path, _File, "MCP_SERVERS", variables)
    return [_spec_of(name, server, hosts) for name, server in content.mcp_servers.items() if not server.disabled]


def _spec_of(name: str, server: _Server, hosts: HostAllowlist) -> ServerSpec:
    check_server_name(name)
    if (server.command is None) == (server.url is None):
        raise InvalidRequest(f"MCP_SERVERS: server {name!r} must have either a command or a url")
    return ServerSpec(
        name,
        _program_of(server) if server.command is not None else _http_of(name, server, hosts),
        trusts_annotations=server.trust_annotations,
        call_timeout_s=server.timeout_seconds,
    )


def _program_of(server: _Server) -> ProgramTransport:
    environment = {name: value.get_secret_value() for name, value in server.env.items()}
    return ProgramTransport((server.command or "", *server.args), environment, server.cwd)


def _http_of(name: str, server: _Server, hosts: HostAllowlist) -> HttpTransport:
    try:
        plain = HttpTransport.parse(server.url or "")
        own = [(plain.host, plain.port)]
        credentials = None
        if server.oauth is not None:
            issuer = HttpTransport.parse(server.oauth.issuer)
            own.append((issuer.host, issuer.port))
            credentials = ClientCredentials(
                server.oauth.client_id,
                server.oauth.client_secret.get_secret_value(),
                server.oauth.issuer,
                server.oauth.scope,
            )
    except InvalidRequest as error:
        raise InvalidRequest(f"MCP_SERVERS: server {name!r}: {error}") from None
    return replace(
        plain,
        hosts=hosts.with_inner_hosts(*own),
        headers={name: value.get_secret_value() for name, value in server.headers.items()},
        credentials=credentials,
    )
