"""Adds documents to collections and removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pagantic_common.domain.errors import DeadlineExceeded, ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.domain.text.fitting import TextEmbedder, check_embedding_model
from pagantic_common.telemetry.logging import get_logger
from services.context.app.word_counts import WordCounts
from services.context.core.document import (
    NUL,
    Collection,
    CollectionDefaults,
    CollectionKey,
    CollectionOptions,
    Document,
    IngestBounds,
    check_collection_name,
    check_documents,
)
from services.context.core.search.terms import check_language, count_terms
from services.context.core.splitting import Splitting, split
from services.context.ports import CollectionStore, IngestResult, SplitDocument

log = get_logger(__name__)


class Library:
    """The collections of a store.

    Args:
        store: Stores the collections.
        words: Counts the tokens of words.
        embedder: Checks that a model can compute embeddings.
        bounds: The limits of an ingest.
        splitting: The size of chunks.
        defaults: The options of a collection that is created without options.
    """

    def __init__(
        self,
        store: CollectionStore,
        words: WordCounts,
        embedder: TextEmbedder,
        bounds: IngestBounds,
        splitting: Splitting,
        *,
        defaults: CollectionDefaults,
    ) -> None:
        self._store = store
        self._words = words
        self._embedder = embedder
        self._bounds = bounds
        self._splitting = splitting
        self._defaults = defaults

    async def create_collection(self, key: CollectionKey, embedding_model: str | None, language: str) -> Collection:
        """Create an empty collection.

        If `embedding_model` is None, the default model is used; if it is empty, the collection has no embeddings. An
        empty `language` selects the default language.
        """
        check_collection_name("name", key.name)
        check_language("language", language or self._defaults.language)
        if embedding_model is None:
            embedding_model = await self._default_model()
        elif embedding_model:
            await self._check_model(embedding_model)
        return await self._store.create_collection(key, self._defaults.options(embedding_model, language))

    async def list_collections(self, tenant: str) -> list[Collection]:
        """Return the collections of a tenant by name."""
        return await self._store.list_collections(tenant)

    async def find_collection(self, key: CollectionKey) -> Collection | None:
        """Return a collection, or None if the name is unknown."""
        check_collection_name("collection", key.name)
        return await self._store.find_collection(key)

    async def delete_collection(self, key: CollectionKey) -> None:
        """Remove a collection."""
        check_collection_name("name", key.name)
        await self._store.delete_collection(key)

    async def ingest(self, key: CollectionKey, documents: Sequence[Document]) -> IngestResult:
        """Split documents into chunks, and store all of them or nothing."""
        check_collection_name("collection", key.name)
        check_documents(documents, self._bounds)
        options = await self._options_of(key)
        digests = await self._store.find_digests(key, [document.source for document in documents])
        changed = [document for document in documents if digests.get(document.source) != document.digest]
        counts = await self._words.count(options.embedding_model, [document.content for document in changed])
        split_documents = await asyncio.to_thread(self._split, changed, options.language, counts)
        replaced = {document.source for document in changed}
        unchanged = {source: digest for source, digest in digests.items() if source not in replaced}
        stored = await self._store.ingest(key, options, split_documents, unchanged)
        result = replace(
            stored,
            unchanged=stored.unchanged + len(documents) - len(changed),
            split_chunk_count=sum(len(split_document.pieces) for split_document in split_documents),
        )
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
        """Remove documents and return how many were removed."""
        check_collection_name("collection", key.name)
        # No stored source contains NUL, and PostgreSQL rejects queries that contain NUL.
        return await self._store.delete_documents(key, [source for source in sources if NUL not in source])

    async def _options_of(self, key: CollectionKey) -> CollectionOptions:
        collection = await self._store.find_collection(key)
        if collection is not None:
            return collection.options
        return self._defaults.options(await self._default_model())

    async def _default_model(self) -> str:
        """Return the default embedding model, or an empty string if the inference service cannot embed with it."""
        model = self._defaults.embedding_model
        if not model:
            return ""
        try:
            await self._check_model(model)
        except InvalidRequest as error:
            if error.code is not ErrorCode.CONFIG_NO_ENGINE:
                raise
            log.warning("a new collection has no embeddings: the default model makes none", model=model)
            return ""
        return model

    async def _check_model(self, model: str) -> None:
        """Raise the inference service's error for an unknown model or a model that cannot compute embeddings."""
        await self._words.check_model(model)
        # The model may be busy or unavailable now, because embedding waits until it is available.
        with suppress(Unavailable, Overloaded, DeadlineExceeded):
            await check_embedding_model(self._embedder, model)

    def _split(
        self, documents: Sequence[Document], language: str, token_counts: Mapping[str, int]
    ) -> list[SplitDocument]:
        split_documents = []
        for document in documents:
            pieces = split(document, self._splitting, token_counts)
            contents = (document.content[piece.start : piece.end] for piece in pieces)
            split_documents.append(
                SplitDocument(document, pieces, [count_terms(content, language) for content in contents])
            )
        return split_documents
