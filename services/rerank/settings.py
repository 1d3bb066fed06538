"""Settings of the rerank service, read from PAGANTIC_RERANK_*."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagantic_common.domain.defaults import PORTS
from pagantic_common.settings import InnerSettings


class RerankSettings(InnerSettings):
    """The settings of the rerank service."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_RERANK_", frozen=True, extra="ignore")

    port: int = Field(PORTS["rerank"], ge=0, le=65535, description="port to listen on; 0 takes a free one")
