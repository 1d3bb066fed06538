"""Finds the chunks of a collection that fit a query. Indexes are kept in memory until their collection changes."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum

from pagantic_common.domain.chunks import Chunk, check_min_score
from pagantic_common.domain.errors import InvalidRequest, Unsupported
from pagantic_common.domain.text.scoring import TextIndex
from services.context.core.chunk import select_chunks
from services.context.core.document import check_collection_name
from services.context.ports import DocumentStore, Version

CHUNK_BYTES = 200  # a chunk without its text


class Retriever(StrEnum):
    """How scores are made; the value is the score_kind."""

    BM25 = "bm25"
    KEYWORD = "keyword"
    VECTOR = "cosine"
    HYBRID = "rrf"


@dataclass(frozen=True, slots=True)
class RetrievalPolicy:
    """Where to look and what to keep; `max_chunks` of 0 or less is all, `max_tokens` of 0 the service's default."""

    collection: str
    retriever: Retriever = Retriever.BM25
    max_chunks: int = 0
    min_score: float | None = None
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Indexed:
    version: Version
    chunks: list[Chunk]
    index: TextIndex
    size_bytes: int


class Retrieval:
    """Searches collections.

    Args:
        store: Where the chunks are.
        max_index_bytes: Memory for the indexes that are kept, and their texts; the one used longest ago goes first.
            The one in use may be larger.
    """

    def __init__(self, store: DocumentStore, max_index_bytes: int) -> None:
        self._store = store
        self._max_index_bytes = max_index_bytes
        self._indexes: OrderedDict[str, _Indexed] = OrderedDict()
        self._building: dict[str, asyncio.Lock] = {}

    async def retrieve(self, query: str, policy: RetrievalPolicy) -> list[Chunk]:
        """Return the chunks that share a term with the query, best first, without duplicates."""
        check_collection_name("policy.collection", policy.collection)
        check_min_score("policy.min_score", policy.min_score)
        if not query.strip():
            raise InvalidRequest("query is empty")
        if policy.retriever not in (Retriever.BM25, Retriever.KEYWORD):
            name = f"RETRIEVER_{policy.retriever.name}"
            raise Unsupported(f"{name} arrives in a later version: use RETRIEVER_BM25 or RETRIEVER_KEYWORD")
        indexed = await self._open_index(policy.collection)
        return await asyncio.to_thread(_search, indexed, query, policy)

    async def _open_index(self, name: str) -> _Indexed:
        version = await self._store.version_of(name)
        # One caller builds, the others wait for it.
        lock = self._building.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                indexed = self._indexes.get(name)
                if indexed is None or indexed.version != version:
                    loaded, chunks = await self._store.load_chunks(name)
                    self._indexes.pop(name, None)  # the old index is not kept beside the new one
                    indexed = self._indexes[name] = await asyncio.to_thread(_index, loaded, chunks)
                self._indexes.move_to_end(name)
        finally:
            if not lock.locked():
                self._building.pop(name, None)
        while len(self._indexes) > 1 and sum(one.size_bytes for one in self._indexes.values()) > self._max_index_bytes:
            self._indexes.popitem(last=False)
        return indexed


def _index(version: Version, chunks: list[Chunk]) -> _Indexed:
    index = TextIndex([chunk.content for chunk in chunks])
    texts = sum(sys.getsizeof(chunk.content) + CHUNK_BYTES for chunk in chunks)
    metadata = sum({chunk.source: sys.getsizeof(chunk.metadata_json) for chunk in chunks}.values())
    return _Indexed(version, chunks, index, index.size_bytes + texts + metadata)


def _search(indexed: _Indexed, query: str, policy: RetrievalPolicy) -> list[Chunk]:
    search = indexed.index.bm25 if policy.retriever is Retriever.BM25 else indexed.index.coverage
    scores = sorted(search(query).items())
    found = [replace(indexed.chunks[at], score=score, score_kind=policy.retriever.value) for at, score in scores]
    return select_chunks(found, policy.min_score, policy.max_chunks)
