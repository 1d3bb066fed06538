"""The ports of the app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.ranking import Vectors
from services.context.core.document import Collection, CollectionKey, CollectionOptions, Document, Prefixes
from services.context.core.reading.files import FileHeader, FolderSelection
from services.context.core.search.collection_index import IndexChanges, Version
from services.context.core.search.terms import TermCounts
from services.context.core.splitting import Piece


@dataclass(frozen=True, slots=True)
class SplitDocument:
    """A document with its pieces, and the terms of each."""

    document: Document
    pieces: Sequence[Piece]
    terms: Sequence[TermCounts]


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The numbers of documents of an ingest, and the collection after it."""

    collection: Collection
    added: int
    replaced: int
    unchanged: int
    split_chunk_count: int = 0  # of the documents that were not unchanged


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk with its id in the store, its document, and its place among the document's chunks."""

    id: int
    document_id: int
    position: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class UnembeddedChunks:
    """Chunks of a collection that wait for their embeddings: their ids, and their contents in the same order."""

    tenant: str
    collection_id: int
    model: str
    prefix: str
    ids: Sequence[int]
    contents: Sequence[str]


@dataclass(frozen=True, slots=True)
class DerivedChunk:
    """A chunk and the data derived from its content: a hash, its terms, and its embedding, None if missing."""

    stored: StoredChunk
    content_digest: int
    terms: bytes
    vector: Vectors | None
    is_waiting: bool  # for its embedding


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A consistent snapshot of a document, its chunks, and the options of its collection.

    `version` is the first version of the collection that has the document; an empty digest is unknown.
    """

    document: Document
    digest: str
    version: Version
    options: CollectionOptions
    chunks: Sequence[DerivedChunk]


class CollectionStore(Protocol):
    """Stores collections durably. A change is on disk when its method returns; a failed change leaves no trace."""

    async def create_collection(self, key: CollectionKey, options: CollectionOptions) -> Collection:
        """Make an empty collection; raises Conflict when the name is taken."""

    async def list_collections(self, tenant: str) -> list[Collection]:
        """Return the collections of a tenant by name."""

    async def find_collection(self, key: CollectionKey) -> Collection | None:
        """Return a collection; None for an unknown name."""

    async def delete_collection(self, key: CollectionKey) -> None:
        """Remove a collection with its documents; raises NotFound."""

    async def find_digests(self, key: CollectionKey, sources: Sequence[str]) -> dict[str, str]:
        """Return the hashes of the stored documents among sources; empty for an unknown collection."""

    async def ingest(
        self,
        key: CollectionKey,
        options: CollectionOptions,
        documents: Sequence[SplitDocument],
        unchanged: Mapping[str, str],
    ) -> IngestResult:
        """Store all documents with their chunks, or nothing; creates a missing collection.

        `unchanged` has the hashes of documents that must be stored already. Raises Conflict if the collection has other
        options, or if any of those documents is missing or has changed.
        """

    async def delete_documents(self, key: CollectionKey, sources: Sequence[str]) -> int:
        """Remove documents and return their number; raises NotFound for the collection."""


class ChunkStore(Protocol):
    """Reads chunks, and the data for indexes."""

    async def read_whole(self, key: CollectionKey) -> IndexChanges:
        """Return the whole collection; raises NotFound."""

    async def changes_since(self, key: CollectionKey, version: Version) -> IndexChanges | None:
        """Return the changes after a version, or everything if they are unknown; None without changes.

        Raises NotFound.
        """

    async def read_chunks(self, ids: Sequence[int]) -> list[StoredChunk]:
        """Return the chunks that are still there."""

    async def read_texts(self, spans: Sequence[tuple[int, int, int]]) -> list[str]:
        """Return parts of documents: document id, start and end; empty for a document that is gone."""

    async def read_neighbours(self, document_id: int, first: int, last: int) -> list[StoredChunk]:
        """Return the chunks of a document from `first` to `last`."""

    def read_documents(self, key: CollectionKey) -> AsyncIterator[StoredDocument]:
        """Yield every document with all that was derived from it; raises NotFound for the collection.

        A document that is removed meanwhile may be missing.
        """

    async def count_orphans(self, key: CollectionKey) -> int:
        """Return the number of chunks without a document; raises NotFound for the collection."""


class EmbeddingStore(Protocol):
    """Keeps the embeddings of chunks."""

    async def claim_unembedded(
        self, limit: int, excluded_models: Sequence[str], *, after: int = 0
    ) -> UnembeddedChunks | None:
        """Return the oldest waiting chunks of a collection, which no other replica gets for a time.

        The collection is the next by id after `after`, or else the first. None if no chunks wait, or only chunks of
        excluded models.
        """

    async def release(self, chunks: UnembeddedChunks) -> None:
        """Let every replica have claimed chunks again."""

    async def set_aside(self, chunks: UnembeddedChunks, seconds: int) -> None:
        """Let no replica have claimed chunks for a time."""

    async def put_embeddings(self, chunks: UnembeddedChunks, vectors: Vectors) -> None:
        """Store embeddings of chunks that still exist and still want this model and prefix.

        Raises PreconditionFailed for vectors that differ in length from the collection's vectors.
        """

    async def change_model(self, key: CollectionKey, model: str, prefixes: Prefixes) -> Collection:
        """Drop a collection's embeddings, and queue its chunks for a model; raises NotFound."""


class TokenCounter(Protocol):
    """Counts tokens with a model's tokenizer."""

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text; an empty name is the default model."""


class SourceStore(Protocol):
    """Reads the sources of documents."""

    async def list_sources(self, key: CollectionKey, prefix: str) -> list[str]:
        """Return the sources that begin with a prefix; empty for an unknown collection."""


class IncomingFile(Protocol):
    """The content of a file that is not read yet. Bytes beyond the limit of a file are dropped."""

    @property
    def path(self) -> str:
        """The place of the content."""

    async def write(self, data: bytes) -> None:
        """Add the next bytes."""


class IncomingFiles(Protocol):
    """Keeps the contents of files until they are read."""

    def open(self) -> AbstractAsyncContextManager[IncomingFile]:
        """Make an empty file, which is removed when the context ends."""


class FileReading(Protocol):
    """Reads the contents of files."""

    async def read(self, header: FileHeader, file: IncomingFile) -> Document:
        """Return the document of a file; raises InvalidRequest with the next step."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """Paths of files below a root, in their order, and of the folders that cannot be listed, each with its reason."""

    paths: Sequence[str]
    unreadable: Sequence[tuple[str, str]]


class ServedFolders(Protocol):
    """Folders of this machine that callers may have the service read."""

    async def list_files(self, selection: FolderSelection) -> FolderListing:
        """List the files of a selection. Raises PermissionDenied, NotFound, InvalidRequest and PreconditionFailed."""

    async def copy(self, root: str, path: str, file: IncomingFile) -> None:
        """Copy the content of a file; raises InvalidRequest for an unreadable file."""
