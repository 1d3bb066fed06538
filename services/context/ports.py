"""The ports of the app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.chunks import Chunk
from services.context.core.document import Collection, Document


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

    async def create_collection(self, name: str) -> Collection:
        """Make an empty collection; raises Conflict when the name is taken."""

    async def list_collections(self) -> list[Collection]:
        """Return collections by name."""

    async def delete_collection(self, name: str) -> None:
        """Remove a collection with its documents; raises NotFound."""

    async def ingest(self, name: str, documents: Sequence[tuple[Document, Sequence[str]]]) -> IngestResult:
        """Store documents with their chunks, all or none; creates a missing collection."""

    async def delete_documents(self, name: str, sources: Sequence[str]) -> int:
        """Remove documents and return their number; raises NotFound for the collection."""

    async def version_of(self, name: str) -> Version:
        """Return the collection's version; raises NotFound."""

    async def load_chunks(self, name: str) -> tuple[Version, list[Chunk]]:
        """Return all chunks, in the order of their documents and positions, with their version; raises NotFound."""


class TokenCounter(Protocol):
    """Counts tokens with a model's tokenizer."""

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text; an empty name is the default model."""
