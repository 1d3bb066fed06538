"""Finds the chunks of a collection for a query. Indexes stay in memory until their collection changes."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.scoring import TextIndex
from services.context.core.chunk import select_chunks
from services.context.core.document import CollectionKey
from services.context.core.policy import RetrievalPolicy, Retriever
from services.context.ports import DocumentStore, Version

CHUNK_BYTES = 200  # memory of a chunk without its text


@dataclass(frozen=True, slots=True)
class _Indexed:
    version: Version
    chunks: list[Chunk]
    index: TextIndex
    size_bytes: int


class Retrieval:
    """Searches collections.

    Args:
        store: The store of the chunks.
        max_index_bytes: Memory for the kept indexes and their texts; the least recently used index is dropped first.
            The index in use may be larger.
    """

    def __init__(self, store: DocumentStore, max_index_bytes: int) -> None:
        self._store = store
        self._max_index_bytes = max_index_bytes
        self._indexes: OrderedDict[CollectionKey, _Indexed] = OrderedDict()
        self._building: dict[CollectionKey, asyncio.Lock] = {}

    async def retrieve(self, tenant: str, query: str, policy: RetrievalPolicy) -> list[Chunk]:
        """Return the chunks of a tenant that share a term with the query, best first, without duplicates."""
        policy.check_retrieval(query)
        indexed = await self._open_index(CollectionKey(tenant, policy.collection))
        return await asyncio.to_thread(_search, indexed, query, policy)

    async def _open_index(self, key: CollectionKey) -> _Indexed:
        version = await self._store.version_of(key)
        # One caller builds the index, and the others wait for it.
        lock = self._building.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                indexed = self._indexes.get(key)
                if indexed is None or indexed.version != version:
                    loaded, chunks = await self._store.load_chunks(key)
                    self._indexes.pop(key, None)  # frees the old index before the new one is built
                    indexed = self._indexes[key] = await asyncio.to_thread(_index, loaded, chunks)
                self._indexes.move_to_end(key)
        finally:
            if not lock.locked():
                self._building.pop(key, None)
        self._drop_old_indexes()
        return indexed

    def _drop_old_indexes(self) -> None:
        while len(self._indexes) > 1:
            used_bytes = sum(indexed.size_bytes for indexed in self._indexes.values())
            if used_bytes <= self._max_index_bytes:
                return
            self._indexes.popitem(last=False)


def _index(version: Version, chunks: list[Chunk]) -> _Indexed:
    index = TextIndex([chunk.content for chunk in chunks])
    texts = sum(sys.getsizeof(chunk.content) + CHUNK_BYTES for chunk in chunks)
    metadata = sum({chunk.source: sys.getsizeof(chunk.metadata_json) for chunk in chunks}.values())
    return _Indexed(version, chunks, index, index.size_bytes + texts + metadata)


def _search(indexed: _Indexed, query: str, policy: RetrievalPolicy) -> list[Chunk]:
    search, kind = indexed.index.bm25, Retriever.BM25
    if policy.retriever is Retriever.KEYWORD:
        search, kind = indexed.index.coverage, Retriever.KEYWORD
    scores = sorted(search(query).items())
    chunks = [replace(indexed.chunks[at], score=score, score_kind=kind.value) for at, score in scores]
    return select_chunks(chunks, policy.min_score, policy.max_chunks)
