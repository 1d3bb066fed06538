"""Adds documents to collections, and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagantic_common.telemetry.logging import get_logger
from services.context.core.chunking import split_text
from services.context.core.document import (
    Collection,
    Document,
    IngestBounds,
    check_collection_name,
    check_documents,
)
from services.context.ports import DocumentStore, IngestResult

log = get_logger(__name__)


class Library:
    """The collections of a store."""

    def __init__(self, store: DocumentStore, bounds: IngestBounds, chunk_chars: int, overlap_chars: int) -> None:
        self._store = store
        self._bounds = bounds
        self._chunk_chars = chunk_chars
        self._overlap_chars = overlap_chars

    async def create_collection(self, name: str) -> Collection:
        """Make an empty collection."""
        check_collection_name("name", name)
        return await self._store.create_collection(name)

    async def list_collections(self) -> list[Collection]:
        """Return collections by name."""
        return await self._store.list_collections()

    async def delete_collection(self, name: str) -> None:
        """Remove a collection."""
        check_collection_name("name", name)
        await self._store.delete_collection(name)

    async def ingest(self, name: str, documents: Sequence[Document]) -> IngestResult:
        """Split documents into chunks and store them, all or none."""
        check_collection_name("collection", name)
        check_documents(documents, self._bounds)
        result = await self._store.ingest(name, await asyncio.to_thread(self._split, documents))
        log.info(
            "documents ingested",
            collection=name,
            added=result.added,
            replaced=result.replaced,
            unchanged=result.unchanged,
            chunks=result.collection.chunk_count,
        )
        return result

    async def delete_documents(self, name: str, sources: Sequence[str]) -> int:
        """Remove documents and return their number."""
        check_collection_name("collection", name)
        return await self._store.delete_documents(name, sources)

    def _split(self, documents: Sequence[Document]) -> list[tuple[Document, list[str]]]:
        return [
            (document, split_text(document.content, self._chunk_chars, self._overlap_chars)) for document in documents
        ]
