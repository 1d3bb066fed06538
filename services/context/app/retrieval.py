"""Finds the chunks of a collection that match a query."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pagantic_common.domain.chunks import MAX_CHUNKS, Chunk
from pagantic_common.domain.errors import Overloaded, PreconditionFailed
from pagantic_common.domain.text.fitting import PrefixedEmbedder, TextEmbedder, embed_ends
from pagantic_common.telemetry.scope import current_principal
from pagantic_common.workers.fair_places import FairPlaces
from services.context.app.expansion import Expanding
from services.context.app.indexes import Indexes
from services.context.core.document import CollectionKey, CollectionOptions
from services.context.core.policy import RetrievalPolicy
from services.context.core.search.collection_index import CollectionIndex, FilterStopped
from services.context.core.search.lexical_index import Mask
from services.context.core.search.terms import query_term_ids
from services.context.core.search.vector_index import Vector
from services.context.core.searching import Hit, Query, find_best
from services.context.ports import ChunkStore, StoredChunk

MAX_REPLY_BYTES: Final = 3 * 1024 * 1024
CHUNK_OVERHEAD_BYTES: Final = 512  # Upper bound on the bytes of a chunk's id, numbers and field names.
FILTERS_AT_ONCE: Final = 2
MAX_FILTER_S: Final = 5.0
FILTER_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """Chunks, best first, and the number of chunks that a vector search missed for lack of an embedding."""

    chunks: tuple[Chunk, ...]
    unembedded_count: int = 0


class Retrieval:
    """Searches collections."""

    def __init__(self, chunks: ChunkStore, indexes: Indexes, embedder: TextEmbedder) -> None:
        self._chunks = chunks
        self._indexes = indexes
        self._embedder = embedder
        self._expanding = Expanding(chunks)
        self._filters = FairPlaces(FILTERS_AT_ONCE, of_owner=1, resource="the evaluation of a filter")

    async def retrieve(
        self, tenant: str, query: str, policy: RetrievalPolicy, more_queries: Sequence[str] = ()
    ) -> Found:
        """Return chunks of a tenant, best first, without duplicates. All queries are searched in a single pass.

        Raises NotFound if the collection does not exist, PreconditionFailed if a vector search finds no vectors in the
        collection, and the inference service's errors.
        """
        policy.check_retrieval(query, more_queries)
        key = CollectionKey(tenant, policy.collection)
        index = await self._indexes.open(key)
        texts = tuple(dict.fromkeys((query, *more_queries)))
        searched = await self._queries(index.options, texts, policy)
        limit = MAX_CHUNKS
        if policy.max_chunks > 0:
            limit = min(policy.max_chunks, MAX_CHUNKS)
        allowed = await self._allowed(index, policy)
        hits = await asyncio.to_thread(find_best, index, searched, policy, limit, allowed)
        chunks = await self._read(hits, policy, policy.score_kind_of(len(searched)))
        unembedded = 0
        if policy.embeds_query:
            unembedded = index.live_count - index.embedded_count
        return Found(tuple(within_reply(chunks)), unembedded)

    async def _allowed(self, index: CollectionIndex, policy: RetrievalPolicy) -> Mask:
        """Return the mask of the chunks that the policy's filter selects. Raises Overloaded if the filter is too slow.

        A new filter is evaluated for every document, and the library holds the interpreter lock meanwhile. Therefore
        only a few filters are evaluated at once, at most one per tenant, and an evaluation stops if its caller leaves.
        """
        expression = policy.compiled_filter()
        if index.has_evaluated(expression):
            return index.allowed(expression)
        async with self._filters.place(current_principal().sharing_tenant):
            ends_at_s, has_left = time.monotonic() + MAX_FILTER_S, threading.Event()

            def must_stop() -> bool:
                return has_left.is_set() or time.monotonic() >= ends_at_s

            try:
                return await asyncio.to_thread(index.allowed, expression, must_stop)
            except FilterStopped as stopped:
                raise Overloaded(
                    f"policy.filter was evaluated for {stopped.done} of {stopped.total} documents within "
                    f"{MAX_FILTER_S:g} s: send the request again to go on, or write a filter that takes fewer steps",
                    retry_after_s=FILTER_RETRY_S,
                ) from None
            finally:
                has_left.set()

    async def _queries(
        self, options: CollectionOptions, texts: Sequence[str], policy: RetrievalPolicy
    ) -> tuple[Query, ...]:
        vectors = await self._embed(options, texts, policy)
        terms = await asyncio.to_thread(lambda: [query_term_ids(text, options.language) for text in texts])
        return tuple(map(Query, terms, vectors))

    async def _embed(
        self, options: CollectionOptions, texts: Sequence[str], policy: RetrievalPolicy
    ) -> Sequence[Vector | None]:
        if policy.needs_vectors and not options.embedding_model:
            raise PreconditionFailed(
                f"collection {policy.collection!r} has no embeddings: give it a model with Reembed, or retrieve with "
                "RETRIEVER_BM25"
            )
        if not policy.embeds_query:
            return [None] * len(texts)
        embedder = PrefixedEmbedder(self._embedder, options.prefixes.query)
        return list(await embed_ends(embedder, options.embedding_model, texts))

    async def _read(self, hits: Sequence[Hit], policy: RetrievalPolicy, score_kind: str) -> list[Chunk]:
        stored = {
            stored_chunk.id: stored_chunk
            for stored_chunk in await self._chunks.read_chunks([hit.chunk_id for hit in hits])
        }
        # Chunks that were deleted since the index was read are left out.
        chunks: list[StoredChunk] = [
            replace(stored_chunk, chunk=replace(stored_chunk.chunk, score=hit.score, score_kind=score_kind))
            for hit in hits
            if (stored_chunk := stored.get(hit.chunk_id)) is not None
        ]
        return await self._expanding.expand(chunks, policy.expansion)


def within_reply(chunks: Iterable[Chunk], max_bytes: int = MAX_REPLY_BYTES) -> list[Chunk]:
    """Return the first chunks that fit into `max_bytes`, but at least one chunk."""
    left_bytes = max_bytes
    kept: list[Chunk] = []
    for chunk in chunks:
        heading = chunk.location.heading if chunk.location is not None else ""
        texts = (chunk.content, chunk.metadata_json, chunk.source, heading)
        left_bytes -= sum(len(text.encode()) for text in texts) + CHUNK_OVERHEAD_BYTES
        if kept and left_bytes < 0:
            break
        kept.append(chunk)
    return kept
