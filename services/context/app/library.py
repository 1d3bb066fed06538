"""Adds documents to collections, and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagantic_common.telemetry.logging import get_logger
from services.context.core.chunking import split_text
from services.context.core.document import (
    Collection,
    CollectionKey,
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

    async def create_collection(self, key: CollectionKey) -> Collection:
        """Make an empty collection."""
        check_collection_name("name", key.name)
        return await self._store.create_collection(key)

    async def list_collections(self, tenant: str) -> list[Collection]:
        """Return the collections of a tenant by name."""
        return await self._store.list_collections(tenant)

    async def delete_collection(self, key: CollectionKey) -> None:
        """Remove a collection."""
        check_collection_name("name", key.name)
        await self._store.delete_collection(key)

    async def ingest(self, key: CollectionKey, documents: Sequence[Document]) -> IngestResult:
        """Split documents into chunks and store them, all or none."""
        check_collection_name("collection", key.name)
        check_documents(documents, self._bounds)
        result = await self._store.ingest(key, await asyncio.to_thread(self._split, documents))
        log.info(
            "documents ingested",
            tenant=key.tenant,
            collection=key.name,
            added=result.added,
            replaced=result.replaced,
            unchanged=result.unchanged,
            chunks=result.collection.chunk_count,
        )
        return result

    async def delete_documents(self, key: CollectionKey, sources: Sequence[str]) -> int:
        """Remove documents and return their number."""
        check_collection_name("collection", key.name)
        return await self._store.delete_documents(key, sources)

    def _split(self, documents: Sequence[Document]) -> list[tuple[Document, list[str]]]:
        return [
            (document, split_text(document.content, self._chunk_chars, self._overlap_chars)) for document in documents
        ]
