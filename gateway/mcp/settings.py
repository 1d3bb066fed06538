"""The settings of the MCP server."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gateway.web.settings import DoorSettings


class McpSettings(DoorSettings):
    """The settings of the MCP server, read from the environment as PAGANTIC_MCP_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_MCP_")

    port: int = Field(8090, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    call_s: float = Field(600.0, gt=0, le=3600, description="longest time of one call, seconds")
    max_calls: int = Field(64, ge=1, description="tool calls that run at once; more are refused")
    max_message_bytes: int = Field(1024 * 1024, ge=1024, description="largest message taken, over HTTP or stdio")
    max_sessions: int = Field(1024, ge=1, description="open sessions; one more is refused")
