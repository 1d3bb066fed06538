"""Settings of the tools service, read from PAGANTIC_TOOLS_*."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import limits
from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import InnerSettings


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
    retry_backoff_s: float = Field(0.05, ge=0, le=60, description="wait before the first retry; doubles each time")
    modules: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="modules whose functions with @tool are offered: package.module or the path of a .py file, "
        "comma-separated",
    )
    installed: bool = Field(True, description="whether tools of installed packages are offered, too")
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
    mcp_max_servers: int = Field(16, ge=1, le=256, description="most servers at a time")
    mcp_max_tools: int = Field(128, ge=1, le=1024, description="most tools of a server; more are left out")
    mcp_max_tool_bytes: int = Field(
        32_768, ge=1024, le=1_048_576, description="largest name, description and schema of a server's tool together"
    )
    mcp_max_calls: int = Field(64, ge=1, le=1024, description="most calls of a server at a time; more wait")
    mcp_max_message_bytes: int = Field(
        1_048_576, ge=4096, le=3_145_728, description="largest message of a server, in bytes"
    )
    mcp_request_timeout_s: float = Field(
        30.0, gt=0, le=3600, description="time to connect a server, and for its lists, resources and prompts"
    )
    mcp_refresh_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="time after which a server is asked for its tools again, or is found lost",
    )
    mcp_reconnect_s: float = Field(
        0.5, ge=0.01, le=3600, description="wait before a lost server is connected again; doubles each time"
    )
    mcp_max_reconnect_s: float = Field(60.0, ge=0.01, le=86_400, description="longest such wait")

    openapi: Path | None = Field(None, description="JSON file of APIs, each with an OpenAPI document, as tools")
    openapi_max_tools: int = Field(128, ge=1, le=1024, description="most tools of an API; more are left out")
    openapi_max_tool_bytes: int = Field(
        32_768, ge=1024, le=1_048_576, description="largest name, description and schema of an API's tool together"
    )
    openapi_max_message_bytes: int = Field(
        1_048_576, ge=4096, le=67_108_864, description="largest answer of an API, in bytes"
    )

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
