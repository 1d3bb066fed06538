"""Settings of the tools service, read from PAGANTIC_TOOLS_*."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import InnerSettings


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
    max_result_bytes: int = Field(65_536, ge=256, description="largest result, in bytes of UTF-8")

    @field_validator("modules", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())
