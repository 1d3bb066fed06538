"""Finds the best chunks of an index for a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pagantic_common.domain.text.ranking import Order, Scores, best_positions, diversify, fuse_ranks, fuse_scores
from services.context.core.policy import Fusion, RetrievalPolicy, Retriever
from services.context.core.search.collection_index import CollectionIndex
from services.context.core.search.lexical_index import Mask
from services.context.core.search.metadata_filter import compile_filter
from services.context.core.search.terms import TermIds
from services.context.core.search.vector_index import NO_VECTOR, Vector

MIN_DEPTH: Final = 400  # chunks of each leg of a fusion, at least
DIVERSIFIED: Final = 4  # candidates for each chunk of a diverse selection


@dataclass(frozen=True, slots=True)
class Query:
    """A query as an index reads it; `vector` is its embedding, None where no vectors are searched."""

    term_ids: TermIds
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that was found, by its id in the store."""

    chunk_id: int
    score: float


def find_best(index: CollectionIndex, queries: Sequence[Query], policy: RetrievalPolicy, limit: int) -> list[Hit]:
    """Return at most `limit` chunks, best first, ties in the order of storing; of equal contents the first.

    The orders of several queries are fused by reciprocal rank, each with the same weight.
    """
    allowed = index.alive
    if policy.filter:
        allowed = index.allowed(compile_filter("policy.filter", policy.filter))
    if policy.diversity:
        candidates = _distinct(index, queries, policy, allowed, DIVERSIFIED * limit)
        scored = _spread(index, candidates, policy.diversity, limit)
    else:
        scored = _distinct(index, queries, policy, allowed, limit)
    ids = index.ids_at([position for position, _ in scored])
    return [Hit(chunk_id, score) for chunk_id, (_, score) in zip(ids, scored, strict=True)]


def _spread(
    index: CollectionIndex, scored: list[tuple[int, float]], diversity: float, limit: int
) -> list[tuple[int, float]]:
    vectors = index.vectors.vectors_at(np.array([position for position, _ in scored], dtype=np.intp))
    return [scored[at] for at in diversify(vectors, [score for _, score in scored], diversity, limit)]


def _distinct(
    index: CollectionIndex, queries: Sequence[Query], policy: RetrievalPolicy, allowed: Mask, limit: int
) -> list[tuple[int, float]]:
    """Return positions with their scores, best first, without repeated contents."""
    depth = limit
    while True:
        scored = _found_by_all(index, queries, policy, allowed, depth)
        digests = index.digests_at(np.array([position for position, _ in scored], dtype=np.intp))
        first_of = dict(reversed(list(zip(digests, scored, strict=True))))
        distinct = sorted(first_of.values(), key=lambda one: (-one[1], one[0]))
        if len(distinct) >= limit or len(scored) < depth:
            return distinct[:limit]
        depth *= 4


def _found_by_all(
    index: CollectionIndex, queries: Sequence[Query], policy: RetrievalPolicy, allowed: Mask, depth: int
) -> list[tuple[int, float]]:
    """Return what the queries find together: for one its own scores, for several the fusion of their orders."""
    if len(queries) == 1:
        return _found(index, queries[0], policy, allowed, depth)
    leg_depth = max(depth, MIN_DEPTH)
    orders = [_found(index, query, policy, allowed, leg_depth) for query in queries]
    legs = [(np.array([position for position, _ in order], dtype=np.intp), 1.0) for order in orders]
    return _by_score(fuse_ranks(legs), depth)


def _found(
    index: CollectionIndex, query: Query, policy: RetrievalPolicy, allowed: Mask, depth: int
) -> list[tuple[int, float]]:
    """Return what one query finds with at least the policy's score."""
    scored = _scored(index, query, policy, allowed, depth)
    if policy.min_score is None:
        return scored
    return [one for one in scored if one[1] >= policy.min_score]


def _by_score(scores: Mapping[int, float], depth: int) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:depth]


def _scored(
    index: CollectionIndex, query: Query, policy: RetrievalPolicy, allowed: Mask, depth: int
) -> list[tuple[int, float]]:
    match policy.retriever:
        case Retriever.KEYWORD:
            return _ranked(*_leg(index.lexical.coverage(query.term_ids), 0.0, allowed, depth))
        case Retriever.VECTOR:
            return _ranked(*_leg(_cosine(index, query, allowed), NO_VECTOR, allowed, depth))
        case Retriever.HYBRID:
            return _fused(index, query, policy, allowed, depth)
        case _:
            return _ranked(*_leg(index.lexical.bm25(query.term_ids), 0.0, allowed, depth))


def _fused(
    index: CollectionIndex, query: Query, policy: RetrievalPolicy, allowed: Mask, depth: int
) -> list[tuple[int, float]]:
    leg_depth = max(depth, MIN_DEPTH)
    words, word_scores = _leg(index.lexical.bm25(query.term_ids), 0.0, allowed, leg_depth)
    near, near_scores = _leg(_cosine(index, query, allowed), NO_VECTOR, allowed, leg_depth)
    if policy.fusion is Fusion.RECIPROCAL_RANK:
        fused = fuse_ranks([(words, 1.0), (near, 1.0)])
    else:
        weight = policy.vector_weight
        fused = fuse_scores([(words, word_scores, 1 - weight), (near, near_scores, weight)])
    return _by_score(fused, depth)


def _cosine(index: CollectionIndex, query: Query, allowed: Mask) -> Scores:
    if query.vector is None:
        return np.full(len(index.alive), NO_VECTOR)
    return index.vectors.cosine(query.vector, allowed)


def _leg(scores: Scores, above: float, allowed: Mask, depth: int) -> tuple[Order, Scores]:
    masked: Scores = np.where(allowed, scores, above)
    return best_positions(masked, above, depth), masked


def _ranked(order: Order, scores: Scores) -> list[tuple[int, float]]:
    return list(zip(order.tolist(), scores[order].tolist(), strict=True))
