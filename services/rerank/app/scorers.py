"""Scorers that use words, retrieval scores, embeddings or a cross-encoder."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import numpy as np

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.calibration import probability_of
from pagantic_common.domain.text.fitting import TextEmbedder, embed_beginnings, embed_ends, ends, first_fitting
from pagantic_common.domain.text.ranking import Vectors, diversify
from pagantic_common.domain.text.scoring import TextIndex
from services.rerank.ports import PairScorer, Scorer, ScorerInfo

TEXTS_OF_A_CALL = 32  # a cross-encoder spends as much time on one text as an embedding model on many


class EmbeddingScorer:
    """A Scorer that returns the cosine similarity of the embeddings of query and chunk.

    Args:
        embedder: Computes the embeddings.
        model: The alias of the embedding model for requests that name no model.
    """

    info = ScorerInfo("embedding", "cosine of the embeddings of query and chunk", -1.0, 1.0)

    def __init__(self, embedder: TextEmbedder, model: str) -> None:
        self._embedder = embedder
        self._model = model

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:
        """Return the cosine similarity of the query and each chunk, or None for a blank chunk."""
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
        """Return at most `limit` chunks by maximal marginal relevance.

        A blank chunk counts as dissimilar to every other chunk.
        """
        texts = [chunk.content for chunk in chunks if chunk.content.strip()]
        if not texts:
            return list(chunks[:limit])
        embedded = await embed_beginnings(self._embedder, model or self._model, texts)
        vectors: Vectors = np.zeros((len(chunks), embedded.shape[1]), dtype=np.float32)
        vectors[[position for position, chunk in enumerate(chunks) if chunk.content.strip()]] = embedded
        scores = [chunk.score for chunk in chunks]
        chosen = await asyncio.to_thread(diversify, vectors, scores, diversity, limit)
        return [chunks[position] for position in chosen]


class CrossEncoderScorer:
    """A Scorer that returns the probability that a cross-encoder assigns to a chunk.

    A chunk that is too long for the model is cut at its end. A query that is too long is cut at its beginning.

    Args:
        pair_scorer: Calls the models.
        model: The alias of the cross-encoder for requests that name no model.
    """

    info = ScorerInfo("cross_encoder", "probability that the chunk is relevant, by a cross-encoder", 0.0, 1.0)

    def __init__(self, pair_scorer: PairScorer, model: str) -> None:
        self._pair_scorer = pair_scorer
        self._model = model

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:
        """Return the probability that each chunk is relevant, or None for a blank chunk."""
        positions = [position for position, chunk in enumerate(chunks) if chunk.content.strip()]
        scores: list[float | None] = [None] * len(chunks)
        for start in range(0, len(positions), TEXTS_OF_A_CALL):
            scored = positions[start : start + TEXTS_OF_A_CALL]
            batch_scores = await self._score_some(model, query, [chunks[position].content for position in scored])
            for position, score in zip(scored, batch_scores, strict=True):
                scores[position] = probability_of(score)
        return scores

    async def _score_some(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        alias = model or self._model
        return await first_fitting(ends(query), lambda end: self._pair_scorer.score_pairs(alias, end, texts))


class IndexScorer:
    """A Scorer that compares the words of the query and the chunk.

    Args:
        info: The description of the scorer for callers.
        search: Takes an index of the chunks and a query. Returns the scores above 0 by position.
    """

    def __init__(self, info: ScorerInfo, search: Callable[[TextIndex, str], dict[int, float]]) -> None:
        self.info = info
        self._search = search

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:  # noqa: ARG002
        """Return a score for each chunk; 0 if the chunk contains no term of the query."""
        texts = [chunk.content for chunk in chunks]
        # This runs in a thread, because scoring a request of maximum size would block the event loop.
        scores = await asyncio.to_thread(lambda: self._search(TextIndex(texts), query))
        return [scores.get(position, 0.0) for position in range(len(texts))]


class RetrieverScorer:
    """A Scorer that returns each chunk's existing score."""

    info = ScorerInfo("retriever", "the score that the chunk came with", -math.inf, math.inf)

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:  # noqa: ARG002
        """Return the existing score of each chunk."""
        return [chunk.score for chunk in chunks]


def local_scorers() -> tuple[Scorer, ...]:
    """Return the scorers that need no model."""
    bm25 = ScorerInfo("bm25", "Okapi BM25 over the given chunks; 0 when no term of the query occurs", 0.0, math.inf)
    keyword = ScorerInfo("keyword", "fraction of the query's distinct terms that the chunk has", 0.0, 1.0)
    return (IndexScorer(bm25, TextIndex.bm25), IndexScorer(keyword, TextIndex.coverage), RetrieverScorer())
