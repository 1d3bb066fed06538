"""Finds the best chunks of an index for a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pagantic_common.domain.text.ranking import (
    SMOOTHED,
    Fusion,
    Order,
    Scores,
    best_positions,
    diversify,
    fuse_fractions,
    fuse_ranks,
    smooth,
)
from services.context.core.policy import RetrievalPolicy, Retriever
from services.context.core.search.collection_index import CollectionIndex
from services.context.core.search.lexical_index import Mask
from services.context.core.search.terms import TermIds
from services.context.core.search.vector_index import NO_VECTOR, Vector

MIN_DEPTH: Final = 400  # minimum number of chunks of each ranking in a fusion
DIVERSIFIED: Final = 4  # number of candidates per chunk of a diverse selection


@dataclass(frozen=True, slots=True)
class Query:
    """A query prepared for an index. `vector` is its embedding, or None for a search without vectors."""

    term_ids: TermIds
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching chunk, identified by its id in the store."""

    chunk_id: int
    score: float


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Positions with their scores, best first. Ties are in the order of the positions."""

    order: Order
    scores: Scores

    def among(self, places: NDArray[np.intp] | Mask | slice) -> _Ranked:
        return _Ranked(self.order[places], self.scores[places])


def _ranked(order: Order, scores: Scores) -> _Ranked:
    best_first = np.lexsort((order, -scores))
    return _Ranked(order[best_first], scores[best_first])


def find_best(
    index: CollectionIndex, queries: Sequence[Query], policy: RetrievalPolicy, limit: int, allowed: Mask
) -> list[Hit]:
    """Return at most `limit` of the allowed chunks, best first.

    Ties are in the order of storage, and of duplicates the first is kept. The rankings of several queries are fused by
    reciprocal rank, and each ranking has the same weight.
    """
    count = _candidate_count(policy, limit, len(queries))
    answers = [_answer(index, query, policy, allowed, count) for query in queries]
    ranking = answers[0]
    if len(answers) > 1:
        ranking = _by_score(fuse_ranks([(answer.order, 1.0) for answer in answers]))
    if policy.diversity:
        vectors = index.vectors.vectors_at(ranking.order)
        ranking = ranking.among(
            np.array(diversify(vectors, ranking.scores.tolist(), policy.diversity, limit), dtype=np.intp)
        )
    ranking = ranking.among(slice(limit))
    return [Hit(*hit) for hit in zip(index.ids_at(ranking.order), ranking.scores.tolist(), strict=True)]


def _candidate_count(policy: RetrievalPolicy, limit: int, query_count: int) -> int:
    count = limit
    if policy.diversity:
        count = DIVERSIFIED * limit
    if policy.smoothing:
        count = max(count, SMOOTHED)
    if query_count > 1:
        count = max(count, MIN_DEPTH)
    return count


def _answer(index: CollectionIndex, query: Query, policy: RetrievalPolicy, allowed: Mask, limit: int) -> _Ranked:
    """Return the results of a query that reach the policy's minimum score, without duplicate contents."""
    ranking = _distinct(index, query, policy, allowed, limit)
    if policy.smoothing:
        ranking = _smoothed(index, ranking, policy.smoothing)
    if policy.min_score is not None:
        ranking = ranking.among(ranking.scores >= policy.min_score)
    return ranking


def _smoothed(index: CollectionIndex, found: _Ranked, weight: float) -> _Ranked:
    """Smooth the scores of the best candidates. The remaining candidates follow unchanged, with no higher score."""
    best = found.order[:SMOOTHED]
    smoothed = smooth(index.vectors.vectors_at(best), found.scores[:SMOOTHED], weight)
    first = _ranked(best, smoothed)
    return _Ranked(
        np.concatenate([first.order, found.order[SMOOTHED:]]), np.concatenate([first.scores, found.scores[SMOOTHED:]])
    )


def _distinct(index: CollectionIndex, query: Query, policy: RetrievalPolicy, allowed: Mask, limit: int) -> _Ranked:
    """Return at most `limit` positions without duplicate contents."""
    depth = limit
    while True:
        ranking = _find(index, query, policy, allowed, depth)
        _, first_places = np.unique(index.digests_at(ranking.order), return_index=True)
        if len(first_places) >= limit or len(ranking.order) < depth:
            return ranking.among(np.sort(first_places)[:limit])
        depth *= 4


def _find(index: CollectionIndex, query: Query, policy: RetrievalPolicy, allowed: Mask, depth: int) -> _Ranked:
    """Return the best positions: at least `depth`, or all of them if there are fewer."""
    match policy.retriever:
        case Retriever.KEYWORD:
            order, scores = _leg(index.lexical.coverage(query.term_ids), 0.0, allowed, depth)
        case Retriever.VECTOR:
            order, scores = _leg(_cosine(index, query, allowed), NO_VECTOR, allowed, depth)
        case Retriever.HYBRID:
            return _fused(index, query, policy, allowed, max(depth, MIN_DEPTH))
        case _:
            order, scores = _leg(index.lexical.bm25(query.term_ids), 0.0, allowed, depth)
    return _Ranked(order, scores[order])


def _fused(index: CollectionIndex, query: Query, policy: RetrievalPolicy, allowed: Mask, depth: int) -> _Ranked:
    words, word_scores = _leg(index.lexical.bm25(query.term_ids), 0.0, allowed, depth)
    near, near_scores = _leg(_cosine(index, query, allowed), NO_VECTOR, allowed, depth)
    if policy.fusion is Fusion.RECIPROCAL_RANK:
        fused = fuse_ranks([(words, 1.0), (near, 1.0)])
    else:
        weight = policy.vector_weight
        fused = fuse_fractions([(words, word_scores, 1 - weight), (near, near_scores, weight)])
    return _by_score(fused)


def _by_score(scores: Mapping[int, float]) -> _Ranked:
    return _ranked(np.fromiter(scores, dtype=np.intp), np.fromiter(scores.values(), dtype=np.float64))


def _cosine(index: CollectionIndex, query: Query, allowed: Mask) -> Scores:
    if query.vector is None:
        return np.full(len(index.alive), NO_VECTOR)
    return index.vectors.cosine(query.vector, allowed)


def _leg(scores: Scores, above: float, allowed: Mask, depth: int) -> tuple[Order, Scores]:
    masked: Scores = np.where(allowed, scores, above)
    return best_positions(masked, above, depth), masked
