"""Settings of the tools service, read from PAGANTIC_TOOLS_*."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

import limits
from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from pagantic_common.domain.defaults import PORTS, expand_home
from pagantic_common.settings import InnerSettings
from services.tools.core.builtin.file_paths import is_folder_name
from services.tools.core.destinations import AllowedHost, parse_allowed_host


def _is_rate(text: str) -> bool:
    try:
        return limits.parse(text).amount > 0
    except ValueError:
        return False


class ToolsSettings(InnerSettings):
    """The settings of the tools service."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_TOOLS_", frozen=True, extra="ignore")

    port: int = Field(PORTS["tools"], ge=0, le=65535, description="port to listen on; 0 takes a free one")
    default_timeout_s: float = Field(30.0, gt=0, le=3600, description="time for one run of a tool that names none")
    max_retries: int = Field(2, ge=0, le=10, description="further runs of an idempotent tool that failed")
    modules: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="modules whose functions with @tool are offered: package.module or the path of a .py file, "
        "comma-separated",
    )
    installed: bool = Field(True, description="whether tools of installed packages are offered, too")
    fetch_hosts: Annotated[tuple[AllowedHost, ...], NoDecode] = Field(
        (),
        description="hosts that http_fetch may ask, comma-separated: example.com, *.example.com, host:port, or "
        "http://host; an address that is not public must be named itself",
    )
    file_roots: Annotated[dict[str, Path], NoDecode] = Field(
        {}, description="folders that read_file and list_files may read: name=path, comma-separated"
    )
    writable_roots: Annotated[dict[str, Path], NoDecode] = Field(
        {}, description="folders that write_file may write and the others may read: name=path, comma-separated"
    )
    sql_databases: Annotated[dict[str, Path], NoDecode] = Field(
        {}, description="SQLite files that sql_query may read: name=path, comma-separated"
    )
    python: bool = Field(True, description="whether the tool python is offered, which only computes")
    run_programs: bool = Field(False, description="whether run_program is offered, in a sandbox without network")
    hooks: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="hooks around each call, in their order: package.module:object, or the path of a .py file before "
        "the colon; comma-separated",
    )
    rates: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict,
        description="most calls of a tool in a time, by name, with * for any text: http_*=30/minute; comma-separated",
    )
    max_result_bytes: int = Field(65_536, ge=256, description="largest result, in bytes of UTF-8")
    mcp_servers: Path | None = Field(
        None,
        description="JSON file of Model Context Protocol servers, of the form that other clients have: `mcpServers`",
    )
    mcp_programs: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="beginnings of the command lines that RegisterMcpServer may run, comma-separated; those of "
        "MCP_SERVERS need no entry",
    )
    mcp_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="hosts that RegisterMcpServer may connect: names, addresses, both also with a port, and networks; "
        "comma-separated; those of MCP_SERVERS need no entry",
    )
    mcp_max_tools: int = Field(128, ge=1, le=1024, description="most tools of a server; more are left out")
    mcp_max_message_bytes: int = Field(
        1_048_576, ge=4096, le=3_145_728, description="largest message of a server, in bytes"
    )
    openapi: Path | None = Field(None, description="JSON file of APIs, each with an OpenAPI document, as tools")
    openapi_max_tools: int = Field(128, ge=1, le=1024, description="most tools of an API; more are left out")

    @field_validator("mcp_servers", "openapi", mode="before")
    @classmethod
    def _empty_is_no_file(cls, value: Any) -> Any:
        return value or None

    @field_validator("rates", mode="before")
    @classmethod
    def _parse_rates(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.strip().rpartition("=") for part in value.split(",") if part.strip()]
        for name, _, rate in pairs:
            if not name or not _is_rate(rate):
                raise ValueError(f"{name}={rate} must be a tool, = and a number of calls in a time, as in 30/minute")
        return {name: rate for name, _, rate in pairs}

    @field_validator("modules", "hooks", "mcp_programs", "mcp_hosts", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("fetch_hosts", mode="before")
    @classmethod
    def _parse_hosts(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(parse_allowed_host(part) for part in value.split(",") if part.strip())

    @field_validator("file_roots", "writable_roots", mode="before")
    @classmethod
    def _parse_folders(cls, value: Any) -> Any:
        return _parse_named_paths(value, Path.is_dir, "folder")

    @field_validator("sql_databases", mode="before")
    @classmethod
    def _parse_databases(cls, value: Any) -> Any:
        return _parse_named_paths(value, Path.is_file, "file")

    @model_validator(mode="after")
    def _check_folder_names(self) -> Self:
        for name, path in self.writable_roots.items():
            if self.file_roots.get(name, path) != path:
                raise ValueError(f"FILE_ROOTS and WRITABLE_ROOTS name different folders {name!r}: rename one")
        return self


def _parse_named_paths(value: Any, is_there: Callable[[Path], bool], kind: str) -> Any:
    """Parse `name=path, name=path` as absolute paths. Raises ValueError."""
    if not isinstance(value, str):
        return value
    paths: dict[str, Path] = {}
    for part in filter(None, map(str.strip, value.split(","))):
        name, _, written = part.partition("=")
        path = expand_home(written).absolute()
        if not is_folder_name(name) or not written:
            raise ValueError(f"{part!r} is not name=path, where the name has letters, digits, '.', '_' and '-'")
        if name in paths:
            raise ValueError(f"the name {name!r} stands twice: rename one")
        if not is_there(path):
            raise ValueError(f"{written!r} is not a {kind}")
        paths[name] = path
    return paths
