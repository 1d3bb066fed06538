"""The ports of the app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.chunks import Chunk
from services.context.core.document import Collection, CollectionKey, Document


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The numbers of documents of an ingest, and the collection after it."""

    collection: Collection
    added: int
    replaced: int
    unchanged: int


# Changes whenever a collection's chunks may have changed, also when the collection is deleted and created again.
Version = tuple[int, int]


class DocumentStore(Protocol):
    """Stores collections durably. A change is on disk when its method returns; a failed change leaves no trace."""

    async def create_collection(self, key: CollectionKey) -> Collection:
        """Make an empty collection; raises Conflict when the name is taken."""

    async def list_collections(self, tenant: str) -> list[Collection]:
        """Return the collections of a tenant by name."""

    async def delete_collection(self, key: CollectionKey) -> None:
        """Remove a collection with its documents; raises NotFound."""

    async def ingest(self, key: CollectionKey, documents: Sequence[tuple[Document, Sequence[str]]]) -> IngestResult:
        """Store documents with their chunks, all or none; creates a missing collection."""

    async def delete_documents(self, key: CollectionKey, sources: Sequence[str]) -> int:
        """Remove documents and return their number; raises NotFound for the collection."""

    async def version_of(self, key: CollectionKey) -> Version:
        """Return the collection's version; raises NotFound."""

    async def load_chunks(self, key: CollectionKey) -> tuple[Version, list[Chunk]]:
        """Return all chunks, in the order of their documents and positions, with their version; raises NotFound."""


class TokenCounter(Protocol):
    """Counts tokens with a model's tokenizer."""

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text; an empty name is the default model."""
