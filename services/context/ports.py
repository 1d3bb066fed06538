"""The ports that the use cases depend on."""

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
    """A document with its pieces and the terms of each piece."""

    document: Document
    pieces: Sequence[Piece]
    terms: Sequence[TermCounts]


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The numbers of documents by outcome of an ingest, and the resulting collection."""

    collection: Collection
    added: int
    replaced: int
    unchanged: int
    split_chunk_count: int = 0  # excludes unchanged documents


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk with its id in the store, its document, and its position among the document's chunks."""

    id: int
    document_id: int
    position: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class UnembeddedChunks:
    """Chunks of a collection that wait to be embedded: their ids, and their contents in the same order."""

    tenant: str
    collection_id: int
    model: str
    prefix: str
    ids: Sequence[int]
    contents: Sequence[str]


@dataclass(frozen=True, slots=True)
class DerivedChunk:
    """A chunk and the data derived from its content: a hash, its terms, and its embedding (None if missing)."""

    stored: StoredChunk
    content_digest: int
    terms: bytes
    vector: Vectors | None
    is_waiting: bool  # waiting to be embedded


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A consistent snapshot of a document, its chunks, and the options of its collection.

    `version` is the first version of the collection that contains the document. An empty digest means that the digest
    is unknown.
    """

    document: Document
    digest: str
    version: Version
    options: CollectionOptions
    chunks: Sequence[DerivedChunk]


class CollectionStore(Protocol):
    """Stores collections durably. A change is on disk when its method returns. A failed change leaves no trace."""

    async def create_collection(self, key: CollectionKey, options: CollectionOptions) -> Collection:
        """Create an empty collection. Raises Conflict if the name is taken."""

    async def list_collections(self, tenant: str) -> list[Collection]:
        """Return the collections of a tenant by name."""

    async def find_collection(self, key: CollectionKey) -> Collection | None:
        """Return a collection, or None if the name is unknown."""

    async def delete_collection(self, key: CollectionKey) -> None:
        """Remove a collection with its documents. Raises NotFound if the collection does not exist."""

    async def find_digests(self, key: CollectionKey, sources: Sequence[str]) -> dict[str, str]:
        """Return the digests of the stored documents by source. The result is empty if the collection is unknown."""

    async def ingest(
        self,
        key: CollectionKey,
        options: CollectionOptions,
        documents: Sequence[SplitDocument],
        unchanged: Mapping[str, str],
    ) -> IngestResult:
        """Store all documents with their chunks, or nothing. Creates the collection if it does not exist.

        `unchanged` holds the hashes of documents that must be stored already. Raises Conflict if the collection has
        other options, or if any of those documents is missing or has changed.
        """

    async def delete_documents(self, key: CollectionKey, sources: Sequence[str]) -> int:
        """Remove documents and return how many were removed. Raises NotFound if the collection does not exist."""


class ChunkStore(Protocol):
    """Reads chunks and the data for indexes."""

    async def read_whole(self, key: CollectionKey) -> IndexChanges:
        """Return the whole collection. Raises NotFound if the collection does not exist."""

    async def index_bytes(self, key: CollectionKey) -> int:
        """Estimate the memory of the collection's index, in bytes. Raises NotFound if the collection does not exist."""

    async def changes_since(self, key: CollectionKey, version: Version) -> IndexChanges | None:
        """Return the changes after a version, or None if they are unknown and the collection must be read whole.

        The version of the changes is the same if nothing has changed. Raises NotFound if the collection does not exist.
        """

    async def read_chunks(self, ids: Sequence[int]) -> list[StoredChunk]:
        """Return the chunks that still exist."""

    async def read_texts(self, spans: Sequence[tuple[int, int, int]]) -> list[str]:
        """Return parts of documents by document id, start and end. A deleted document has an empty text."""

    async def read_neighbours(self, document_id: int, first: int, last: int) -> list[StoredChunk]:
        """Return the chunks of a document from position `first` to position `last`."""

    def read_documents(self, key: CollectionKey) -> AsyncIterator[StoredDocument]:
        """Yield every document with all data derived from it. Raises NotFound if the collection does not exist.

        A document that is removed meanwhile may be missing.
        """

    async def count_orphans(self, key: CollectionKey) -> int:
        """Return the number of chunks without a document. Raises NotFound if the collection does not exist."""


class EmbeddingStore(Protocol):
    """Stores the embeddings of chunks."""

    async def claim_unembedded(
        self, limit: int, excluded_models: Sequence[str], *, after: int = 0
    ) -> UnembeddedChunks | None:
        """Claim the oldest waiting chunks of a collection, so that other replicas skip them for a time.

        The collection is the next by id after `after`, or else the first with waiting chunks. Returns None if no chunks
        wait, or if only chunks of excluded models wait.
        """

    async def release(self, chunks: UnembeddedChunks) -> None:
        """Release claimed chunks, so that any replica may claim them."""

    async def set_aside(self, chunks: UnembeddedChunks, seconds: int) -> None:
        """Prevent all replicas from claiming these chunks for a number of seconds."""

    async def put_embeddings(self, chunks: UnembeddedChunks, vectors: Vectors) -> None:
        """Store the embeddings of chunks that still exist and still need this model and prefix.

        Raises PreconditionFailed if the vectors differ in length from the collection's vectors.
        """

    async def change_model(self, key: CollectionKey, model: str, prefixes: Prefixes) -> Collection:
        """Drop a collection's embeddings, and queue its chunks for a model.

        Raises NotFound if the collection does not exist.
        """


class TokenCounter(Protocol):
    """Counts tokens with a model's tokenizer."""

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        """Return the token count of each text. An empty `model` selects the default model."""


class SourceStore(Protocol):
    """Reads the sources of documents."""

    async def list_sources(self, key: CollectionKey, prefix: str) -> list[str]:
        """Return the sources that start with a prefix. The result is empty if the collection is unknown."""


class IncomingFile(Protocol):
    """The content of a file that has not been read yet. Bytes beyond the size limit are dropped."""

    @property
    def path(self) -> str:
        """The path at which the content is stored."""

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises Overloaded if the tenant's share of the capacity is used up."""


class IncomingFiles(Protocol):
    """Stores the contents of files until they are read."""

    def open(self, tenant: str) -> AbstractAsyncContextManager[IncomingFile]:
        """Create an empty file for a tenant, and remove it when the context ends."""


class FileReading(Protocol):
    """Turns the contents of files into documents."""

    async def read(self, header: FileHeader, file: IncomingFile) -> Document:
        """Return the document of a file. Raises InvalidRequest with a message that suggests the next step."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The sorted paths of the files below a root, and the folders that cannot be listed, each with the reason."""

    paths: Sequence[str]
    unreadable: Sequence[tuple[str, str]]


class ServedFolders(Protocol):
    """Folders of this machine that the service may read for callers."""

    async def list_files(self, selection: FolderSelection) -> FolderListing:
        """List the files of a selection. Raises PermissionDenied, NotFound, InvalidRequest or PreconditionFailed."""

    async def copy(self, root: str, path: str, file: IncomingFile) -> None:
        """Copy the content of a file. Raises InvalidRequest if the file is unreadable."""
