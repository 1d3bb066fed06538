"""Defines documents and collections, and checks them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pagantic_common.domain.chunks import parse_metadata
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from services.context.core.outline import Outline

_COLLECTION = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_SOURCE_CHARS = 512
MAX_COLLECTION_METADATA_BYTES = 64 * 1024 * 1024  # sources and metadata in UTF-8, which every index keeps in memory
NUL = "\0"  # PostgreSQL cannot store text that contains this character.


@dataclass(frozen=True, slots=True)
class Document:
    """Text to store. `source` names the document within its collection."""

    source: str
    content: str
    metadata_json: str = ""
    outline: Outline = field(default_factory=Outline)

    @property
    def metadata_bytes(self) -> int:
        """The UTF-8 size of source and metadata, which counts towards MAX_COLLECTION_METADATA_BYTES."""
        return len(self.source.encode()) + len(self.metadata_json.encode())

    @property
    def digest(self) -> str:
        """A hash of content, metadata and outline, used to detect changes of the document."""
        head = f"{len(self.metadata_json)}:{self.metadata_json}"
        if self.outline != Outline():
            head += f"{len(self.outline.to_json())}:{self.outline.to_json()}"
        return hashlib.sha256(f"{head}{self.content}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CollectionKey:
    """Identifies a collection by its tenant and its name within the tenant."""

    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prefixes that an embedding model expects before each query and before each chunk of a document."""

    query: str = ""
    document: str = ""


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """The options stored with a collection."""

    embedding_model: str
    language: str
    prefixes: Prefixes = Prefixes()


@dataclass(frozen=True, slots=True)
class CollectionDefaults:
    """The default model and language of new collections, and the prefixes that each model expects."""

    embedding_model: str
    language: str
    prefixes: Mapping[str, Prefixes] = field(default_factory=dict)

    def options(self, model: str, language: str = "") -> CollectionOptions:
        """Return the options of a new collection. An empty language selects the default language."""
        return CollectionOptions(model, language or self.language, self.prefixes_of(model))

    def prefixes_of(self, model: str) -> Prefixes:
        """Return the prefixes that a model expects."""
        return self.prefixes.get(model, Prefixes())


@dataclass(frozen=True, slots=True)
class Collection:
    """A named set of documents. A collection without an embedding model has no vectors."""

    name: str
    created_at: datetime
    options: CollectionOptions
    document_count: int = 0
    chunk_count: int = 0
    embedded_chunk_count: int = 0


@dataclass(frozen=True, slots=True)
class IngestBounds:
    """The limits of an Ingest request."""

    max_documents: int
    max_document_chars: int


def check_collection_name(field: str, name: str) -> None:
    """Raise an InvalidRequest that names the field unless `name` is a valid collection name."""
    if _COLLECTION.fullmatch(name) is None:
        raise InvalidRequest(f"{field} {name[:80]!r} does not match [A-Za-z0-9._-]{{1,64}}")


def check_source(field: str, source: str) -> None:
    """Raise an InvalidRequest that names the field unless `source` is a valid document name."""
    if not source or len(source) > _MAX_SOURCE_CHARS or not source.isprintable():
        raise InvalidRequest(f"{field} must be 1 to {_MAX_SOURCE_CHARS} printable characters: rename it")


def check_documents(documents: Sequence[Document], bounds: IngestBounds) -> None:
    """Raise InvalidRequest for a malformed, oversized or repeated document, or a document count out of range."""
    if not 1 <= len(documents) <= bounds.max_documents:
        raise InvalidRequest(f"documents has {len(documents)} entries: send 1 to {bounds.max_documents}")
    sources: set[str] = set()
    for position, document in enumerate(documents):
        where = f"documents[{position}]"
        check_source(f"{where}.source", document.source)
        if document.source in sources:
            raise InvalidRequest(f"{where}.source {document.source[:80]!r} is given twice")
        sources.add(document.source)
        _check_content(f"{where}.content", document.content, bounds)
        metadata = parse_metadata(where, document.metadata_json)
        parse_metadata(where, dump_json(metadata))  # Rerankers serialize it again: 1e9 becomes 1000000000.0.


def _check_content(field: str, content: str, bounds: IngestBounds) -> None:
    if not content.strip():
        raise InvalidRequest(f"{field} is empty")
    if len(content) > bounds.max_document_chars:
        actual, limit = len(content), bounds.max_document_chars
        raise InvalidRequest(f"{field} has {actual} characters, at most {limit} are allowed")
    place = content.find(NUL)
    if place >= 0:
        raise InvalidRequest(f"{field} has a NUL (U+0000) at character {place}, which cannot be stored: remove it")
