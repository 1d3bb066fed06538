"""What the app needs from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pagantic_common.domain.chunks import Chunk
from services.context.core.document import Collection, Document


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did, and the collection after it."""

    collection: Collection
    added: int
    replaced: int
    unchanged: int


# Differs whenever a collection's chunks may differ, also after it was deleted and made anew.
Version = tuple[int, int]


class DocumentStore(Protocol):
    """Keeps collections durably. A change is on disk when its method returns; a failed one changed nothing."""

    async def create_collection(self, name: str) -> Collection:
        """Make an empty collection; raises Conflict when the name is taken."""

    async def list_collections(self) -> list[Collection]:
        """Return collections by name."""

    async def delete_collection(self, name: str) -> None:
        """Remove a collection with its documents; raises NotFound."""

    async def ingest(self, name: str, documents: Sequence[tuple[Document, Sequence[str]]]) -> IngestResult:
        """Store documents with their chunks, all or none; makes the collection when it is not there."""

    async def delete_documents(self, name: str, sources: Sequence[str]) -> int:
        """Remove documents and return how many there were; raises NotFound for the collection."""

    async def version_of(self, name: str) -> Version:
        """Return the collection's version; raises NotFound."""

    async def load_chunks(self, name: str) -> tuple[Version, list[Chunk]]:
        """Return all chunks, in the order of their documents and positions, with their version; raises NotFound."""


class TokenCounter(Protocol):
    """Counts tokens as a model does."""

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text; an empty model is the default one."""
