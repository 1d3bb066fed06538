"""Settings of the context service, read from PAGANTIC_CONTEXT_*."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from pagantic_common.domain.defaults import PORTS, local_address
from pagantic_common.settings import CallerSettings, InnerSettings, state_folder
from services.context.core.document import IngestBounds


class ContextSettings(InnerSettings, CallerSettings):
    """The settings of the context service."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_CONTEXT_", frozen=True, extra="ignore")

    port: int = Field(PORTS["context"], ge=0, le=65535, description="port to listen on; 0 takes a free one")
    data_folder: Path = Field(
        default_factory=lambda: state_folder() / "context", description="where the collections are kept"
    )
    inference_address: str = Field(
        local_address("inference"), min_length=1, description="host:port of the inference service"
    )
    inference_timeout_s: float = Field(10.0, gt=0, description="time for one count of tokens")
    chunk_chars: int = Field(800, ge=40, le=100_000, description="longest chunk, in characters")
    overlap_chars: int = Field(80, ge=0, description="most characters that consecutive chunks share")
    default_max_tokens: int = Field(1024, ge=0, description="budget of a policy that names none; 0 is no budget")
    max_documents_per_ingest: int = Field(1000, ge=1, description="documents of one Ingest")
    max_document_chars: int = Field(2_000_000, ge=1, description="characters of one document")
    max_chunks_per_collection: int = Field(100_000, ge=1, description="chunks of one collection")
    max_collections: int = Field(1000, ge=1, le=10_000, description="collections in all")
    max_index_bytes: int = Field(
        512 * 1024 * 1024, ge=1, description="memory for indexes that are kept, and their texts"
    )

    @property
    def ingest_bounds(self) -> IngestBounds:
        """The limits of one Ingest."""
        return IngestBounds(self.max_documents_per_ingest, self.max_document_chars)

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if self.overlap_chars * 4 > self.chunk_chars:
            raise ValueError(
                f"overlap_chars is {self.overlap_chars}: it may be at most a quarter of chunk_chars {self.chunk_chars}"
            )
        return self
