"""Servers as the settings name them: the `mcpServers` files that other clients of the protocol have, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.alias_generators import to_camel

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.tools.core.allowlists import HostAllowlist
from services.tools.core.servers import (
    ClientCredentials,
    HttpTransport,
    ProgramTransport,
    ServerSpec,
    check_server_name,
)

MAX_FILE_BYTES = 1024 * 1024
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Entry(BaseModel):
    """A part of the file; keys that other clients know are left alone."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class _OAuth(_Entry):
    client_id: str
    client_secret: SecretStr
    issuer: str
    scope: str | None = None


class _Server(_Entry):
    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    command: Annotated[str, Field(min_length=1)] | None = None
    args: tuple[str, ...] = ()
    env: dict[str, SecretStr] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, SecretStr] = {}
    oauth: _OAuth | None = None
    disabled: bool = False
    trust_annotations: bool = False
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None


class _File(_Entry):
    mcp_servers: dict[str, _Server]


def read_servers(path: Path, variables: Mapping[str, str], hosts: HostAllowlist) -> list[ServerSpec]:
    """Return the servers of a file that are not disabled.

    `${NAME}` and `${NAME:-default}` in a value stand for an environment variable. A server with a URL may call the host
    of the URL, that of its authorization server, and `hosts`. Raises InvalidRequest, naming what is wrong.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"MCP_SERVERS: {str(path)!r} has more than {MAX_FILE_BYTES} bytes")
        content = _File.model_validate(_expand(parse_json(path.read_text("utf-8")), variables))
        return [_spec_of(name, server, hosts) for name, server in content.mcp_servers.items() if not server.disabled]
    except OSError as error:
        raise InvalidRequest(f"MCP_SERVERS: {str(path)!r} cannot be read: {error.strerror}") from None
    except (JsonTextError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"MCP_SERVERS: {str(path)!r} is not JSON: {error}") from None
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise InvalidRequest(f"MCP_SERVERS: {where!r} in {str(path)!r}: {problem['msg'].lower()}") from None


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


def _expand(value: Any, variables: Mapping[str, str]) -> Any:
    """Put variables in place of their names, in every text of a JSON value."""
    if isinstance(value, dict):
        return {key: _expand(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, variables) for item in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _value_of(found, variables), value)
    return value


def _value_of(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name, default = found[1], found[2]
    value = variables.get(name, default)
    if value is None:
        raise InvalidRequest(f"MCP_SERVERS names the environment variable {name!r}, which is not set")
    return value
