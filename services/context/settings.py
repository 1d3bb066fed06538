"""Settings of the context service, read from PAGANTIC_CONTEXT_*."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from pagantic_common.domain.defaults import EMBEDDING_MODEL, PORTS
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.settings import CallerSettings, InnerSettings, state_folder
from pagantic_common.workers.worker_process import WorkerLimits
from services.context.core.document import CollectionDefaults, IngestBounds, Prefixes
from services.context.core.reading.bounds import ReadingBounds
from services.context.core.search.terms import LANGUAGES

READING_ADVICE = "split the file, send it in a simpler format, or raise MAX_READING_S and MAX_READING_MIB"
MAX_PREFIX_CHARS = 256
MAX_DOCUMENTS_PER_INGEST = 1000  # the documents of an ingest are stored in one transaction
ROOT_NAME = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$"


class PrefixSettings(BaseModel):
    """The prefixes that an embedding model expects before each query and before each chunk of a document."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str = Field("", max_length=MAX_PREFIX_CHARS)
    document: str = Field("", max_length=MAX_PREFIX_CHARS)


class ContextSettings(InnerSettings, CallerSettings):
    """The settings of the context service."""

    model_config = SettingsConfigDict(env_prefix="PAGANTIC_CONTEXT_", frozen=True, extra="ignore")

    port: int = Field(PORTS["context"], ge=0, le=65535, description="port to listen on; 0 takes a free one")
    data_folder: Path = Field(
        default_factory=lambda: state_folder() / "context", description="where the collections are kept"
    )
    store_url: SecretStr = Field(
        SecretStr(""),
        description="database of the collections, sqlite:///PATH or postgresql://…; empty is a file in the data folder",
    )
    store_url_file: Path | None = Field(
        None,
        description="file with that URL in its first line; it wins over STORE_URL and keeps a password out of the "
        "environment",
    )
    embedding_model: str = Field(
        EMBEDDING_MODEL,
        description="embedding model of new collections, an alias of the inference service; empty makes no embeddings",
    )
    language: str = Field(
        "english", description="language whose word endings searches of new collections ignore; none compares words"
    )
    embedding_prefixes: dict[str, PrefixSettings] = Field(
        default_factory=dict,
        description="prefixes that embedding models expect, for new collections, as JSON: model to query and document",
    )
    signing_key_file: Path | None = Field(
        None,
        description="PEM file of the private key that signs tokens for embedding in the background, without a caller",
    )
    embedding_timeout_s: float = Field(60.0, gt=0, le=3600, description="time for embedding one query or 32 chunks")
    chunk_tokens: int = Field(200, ge=16, le=8192, description="longest chunk, in tokens of its embedding model")
    overlap_tokens: int = Field(30, ge=0, description="most tokens that consecutive chunks share")
    default_max_tokens: int = Field(1024, ge=0, description="budget of a policy that names none; 0 is no budget")
    max_document_chars: int = Field(2_000_000, ge=1, description="characters of one document")
    max_file_bytes: int = Field(
        64 * 1024 * 1024, ge=1, le=1024 * 1024 * 1024, description="bytes of one file, also after unpacking"
    )
    max_reading_s: float = Field(
        20.0, ge=0.05, le=600, allow_inf_nan=False, description="longest time that reading one file takes"
    )
    max_reading_mib: int = Field(512, ge=64, description="most memory that reading one file takes, in MiB")
    workers: int = Field(2, ge=1, le=256, description="processes that read files")
    queue_capacity: int = Field(256, ge=1, description="files that wait for a process; more are refused")
    ingest_roots: dict[Annotated[str, Field(pattern=ROOT_NAME)], Path] = Field(
        default_factory=dict, description="folders of this machine that IngestFolder may read, as JSON: name to path"
    )
    max_chunks_per_collection: int = Field(100_000, ge=1, description="chunks of one collection")
    max_collections: int = Field(1000, ge=1, le=10_000, description="collections in all")
    max_stored_bytes_of_tenant: int = Field(
        0,
        ge=0,
        description="bytes of one tenant's collections; one more is RESOURCE_EXHAUSTED; 0 is, with "
        "VERIFYING_KEYS_FILE, as many as are left free",
    )
    max_index_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1,
        description="memory for the search indexes of all collections, in bytes; a collection that needs more alone is "
        "not searched",
    )

    @property
    def ingest_bounds(self) -> IngestBounds:
        """The limits of an Ingest request."""
        return IngestBounds(MAX_DOCUMENTS_PER_INGEST, self.max_document_chars)

    @property
    def has_tenants(self) -> bool:
        """Whether tokens name tenants. Without them, all collections belong to one tenant."""
        return self.verifying_keys_file is not None

    @property
    def max_tenant_bytes(self) -> int | None:
        """The maximum bytes of a tenant's collections. 0 means the free space, and None no maximum (single tenant)."""
        if not self.max_stored_bytes_of_tenant and not self.has_tenants:
            return None
        return self.max_stored_bytes_of_tenant

    @property
    def reading_bounds(self) -> ReadingBounds:
        """The limits of a file."""
        return ReadingBounds(self.max_file_bytes, self.max_document_chars)

    def worker_limits(self, module: str, folder: str) -> WorkerLimits:
        """Return the limits of the worker processes that run a module on the files of a folder."""
        return WorkerLimits(
            self.workers,
            self.max_reading_s,
            self.max_reading_mib,
            self.queue_capacity,
            module,
            READING_ADVICE,
            folders=(folder,),
        )

    def read_database_url(self) -> str:
        """Return the URL of the database. Raises InvalidRequest if its file cannot be read."""
        if self.store_url_file is None:
            return self.store_url.get_secret_value() or f"sqlite:///{self.data_folder / 'context.sqlite3'}"
        try:
            with self.store_url_file.open(encoding="utf-8") as file:
                return file.readline().strip()
        except (OSError, UnicodeDecodeError):
            raise InvalidRequest(f"STORE_URL_FILE {str(self.store_url_file)!r} cannot be read") from None

    @property
    def defaults(self) -> CollectionDefaults:
        """The options of a collection that is created without options."""
        prefixes = {alias: Prefixes(each.query, each.document) for alias, each in self.embedding_prefixes.items()}
        return CollectionDefaults(self.embedding_model, self.language, prefixes)

    @field_validator("signing_key_file", "store_url_file", mode="before")
    @classmethod
    def _empty_path_is_none(cls, value: Any) -> Any:
        return value or None

    @model_validator(mode="after")
    def _check_roots(self) -> Self:
        for name, path in self.ingest_roots.items():
            if not path.is_absolute() or not path.is_dir():
                raise ValueError(f"ingest_roots names {str(path)!r} {name!r}: it must be the whole path of a folder")
        return self

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.overlap_tokens * 4 > self.chunk_tokens:
            raise ValueError(
                f"overlap_tokens is {self.overlap_tokens}: it may be at most a quarter of chunk_tokens "
                f"{self.chunk_tokens}"
            )
        if self.language not in LANGUAGES:
            raise ValueError(f"language {self.language!r} is not known: use one of {', '.join(LANGUAGES)}")
        return self
