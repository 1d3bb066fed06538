"""Embeddings of queries and chunks: the scorer by their cosine, and the order that spreads over different texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.fitting import TextEmbedder, embed_beginnings, embed_ends
from pagantic_common.domain.text.ranking import Vectors, diversify
from services.rerank.ports import ScorerInfo


class EmbeddingScorer:
    """Scores by the cosine of embeddings; a Scorer.

    Args:
        embedder: Makes the embeddings.
        model: Alias of the embedding model for requests without a model.
    """

    info = ScorerInfo("embedding", "cosine of the embeddings of query and chunk", -1.0, 1.0)

    def __init__(self, embedder: TextEmbedder, model: str) -> None:
        self._embedder = embedder
        self._model = model

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:
        """Return the cosine of each chunk, None for a blank chunk."""
        scored = [position for position, chunk in enumerate(chunks) if chunk.content.strip()]
        scores: list[float | None] = [None] * len(chunks)
        if not scored:
            return scores
        model = model or self._model
        query_vector = (await embed_ends(self._embedder, model, [query]))[0]
        vectors = await embed_beginnings(self._embedder, model, [chunks[position].content for position in scored])
        cosines = np.clip(vectors.astype(np.float64) @ query_vector.astype(np.float64), -1.0, 1.0)
        for position, cosine in zip(scored, cosines.tolist(), strict=True):
            scores[position] = cosine
        return scores

    async def spread(self, chunks: Sequence[Chunk], diversity: float, limit: int, model: str) -> list[Chunk]:
        """Return at most `limit` chunks by maximal marginal relevance. A blank chunk is like no other."""
        texts = [chunk.content for chunk in chunks if chunk.content.strip()]
        if not texts:
            return list(chunks[:limit])
        embedded = await embed_beginnings(self._embedder, model or self._model, texts)
        vectors: Vectors = np.zeros((len(chunks), embedded.shape[1]), dtype=np.float32)
        vectors[[position for position, chunk in enumerate(chunks) if chunk.content.strip()]] = embedded
        scores = [chunk.score for chunk in chunks]
        chosen = await asyncio.to_thread(diversify, vectors, scores, diversity, limit)
        return [chunks[position] for position in chosen]
