"""Settings of the rerank service, read from PAGANTIC_RERANK_*."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from pagantic_common.domain.defaults import EMBEDDING_MODEL, PORTS
from pagantic_common.settings import CallerSettings, InnerSettings
from services.rerank.core.policy import MAX_SCORERS, MAX_WEIGHT


class RerankSettings(InnerSettings, CallerSettings):
    """The settings of the rerank service."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_RERANK_", frozen=True, extra="ignore")

    port: int = Field(PORTS["rerank"], ge=0, le=65535, description="port to listen on; 0 takes a free one")
    embedding_model: str = Field(
        EMBEDDING_MODEL, description="model of the scorer embedding and of diversity, an alias of the inference service"
    )
    model: str = Field(
        "", description="model of the scorers likelihood and judge, an alias of the inference service; empty is its own"
    )
    cross_encoder_model: str = Field(
        "",
        description="model of the scorer cross_encoder, an alias of the inference service; empty is its first one",
    )
    default_scorers: dict[str, Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)]] = Field(
        default_factory=lambda: {"retriever": 0.7, "embedding": 0.3},
        min_length=1,
        max_length=MAX_SCORERS,
        description="scorers of requests that name none, a JSON object of scorer to weight; several are fused",
    )
    chunks_at_once: int = Field(2, ge=1, le=64, description="chunks of one request that a model reads at once")
    custom_scorers: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="scorers of installed packages by their names in the group pagantic.scorers, comma-separated"
    )

    @field_validator("custom_scorers", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())
