"""Orders positions by their scores, fuses orders, and spreads a selection over different texts.

An order is an array of positions, best first; ties are in the order of the positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.intp]
Scores = NDArray[np.float64]  # one for each position
Vectors = NDArray[np.float32]  # one row per text

RRF_K: Final = 60
SMOOTHED: Final = 50  # candidates with smoothed scores
SMOOTHING_NEIGHBOURS: Final = 6  # of each candidate, itself included
SAMPLING: Final = 16


class Fusion(StrEnum):
    """Ways to fuse the scores of several searches or scorers; the value is the score_kind."""

    RECIPROCAL_RANK = "rrf"
    WEIGHTED = "weighted"


def best_positions(scores: Scores, above: float, limit: int) -> Order:
    """Return the positions of the `limit` highest scores above a bound."""
    if limit <= 0:
        return np.empty(0, dtype=np.intp)
    candidates = np.flatnonzero(scores > above)
    sample = scores[::SAMPLING]
    if len(candidates) > SAMPLING * limit and len(sample) > limit:
        # The limit-th highest score of a sample is at most the limit-th highest of all: no position below it is among
        # the best.
        bound = np.partition(sample, len(sample) - limit)[len(sample) - limit]
        candidates = candidates[scores[candidates] >= bound]
    order = np.argsort(-scores[candidates], kind="stable")[:limit]
    best: Order = candidates[order]
    return best


def fuse_ranks(legs: Sequence[tuple[Order, float]]) -> dict[int, float]:
    """Return the weighted sum of 1 / (60 + rank) over the legs that rank a position; the first rank is 1.

    Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods"
    (2009), with their k. A leg is an order and its weight, which is 1 in the paper.
    """
    fused: dict[int, float] = {}
    for order, weight in legs:
        for rank, position in enumerate(order.tolist(), 1):
            fused[position] = fused.get(position, 0.0) + weight / (RRF_K + rank)
    return fused


def fuse_scores(legs: Sequence[tuple[Order, Scores, float]]) -> dict[int, float]:
    """Return the weighted sum of the scores of each leg, scaled to [0, 1] over that leg's order.

    A leg is an order, the scores of all positions, and its weight. A position that a leg's order lacks gets 0 from it.
    """
    fused: dict[int, float] = {}
    for order, scores, weight in legs:
        if not len(order):
            continue
        found = scores[order] / 2  # the span of two scores may exceed the largest number
        lowest, highest = float(found.min()), float(found.max())
        span = highest - lowest or 1.0
        for position, score in zip(order.tolist(), found.tolist(), strict=True):
            scaled = (score - lowest) / span
            if highest == lowest:
                scaled = 1.0
            fused[position] = fused.get(position, 0.0) + weight * scaled
    return fused


def fuse_fractions(legs: Sequence[tuple[Order, Scores, float]]) -> dict[int, float]:
    """Return, for every position of any order, the weighted sum of each leg's scores as fractions of its highest.

    A leg is an order, the scores of all positions, and its weight. A score below 0 counts as 0.
    """
    found = np.unique(np.concatenate([order for order, _, _ in legs]))
    fused = np.zeros(len(found))
    for _, scores, weight in legs:
        highest = scores.max(initial=0.0)
        if highest > 0:
            fused += weight * np.maximum(scores[found], 0.0) / highest
    return dict(zip(found.tolist(), fused.tolist(), strict=True))


def smooth(vectors: Vectors, scores: Scores, weight: float) -> Scores:
    """Return the candidates' scores, drawn towards the scores of their nearest candidates.

    Diaz, "Regularizing ad hoc retrieval scores" (2005): a relevant text is seldom alone. Each score becomes (1 -
    weight) of its own and `weight` of the mean of the smoothed scores of its neighbours, including itself, weighted by
    their cosines. The weight is at least 0 and below 1. Results lie between the lowest and the highest score.
    """
    count = len(scores)
    if not count or not weight:
        return scores
    cosines = np.maximum(vectors @ vectors.T, 0.0).astype(np.float64)
    np.fill_diagonal(cosines, 1.0)  # also where a candidate has no vector
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :SMOOTHING_NEIGHBOURS]
    nearness = np.zeros_like(cosines)
    np.put_along_axis(nearness, order, np.take_along_axis(cosines, order, axis=1), axis=1)
    nearness /= nearness.sum(axis=1, keepdims=True)
    smoothed: Scores = np.linalg.solve(np.eye(count) - weight * nearness, (1 - weight) * scores)
    return smoothed


def diversify(vectors: Vectors, scores: Sequence[float], diversity: float, limit: int) -> list[int]:
    """Return the indexes of at most `limit` candidates by maximal marginal relevance.

    Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking" (1998): each next candidate has the highest
    (1 - diversity) * relevance - diversity * (highest cosine with those chosen before). Relevance is the score scaled
    to [0, 1]; a diversity of 0 keeps the order by score.
    """
    count = len(scores)
    relevance = np.asarray(scores, dtype=np.float64)
    if count and float(np.ptp(relevance)) > 0:
        relevance = (relevance - relevance.min()) / np.ptp(relevance)
    nearest = np.zeros(count)
    is_left = np.ones(count, dtype=np.bool_)
    chosen: list[int] = []
    while len(chosen) < min(limit, count):
        value = (1 - diversity) * relevance - diversity * nearest
        value[~is_left] = -np.inf
        best = int(np.argmax(value))
        chosen.append(best)
        is_left[best] = False
        nearest = np.maximum(nearest, vectors @ vectors[best])
    return chosen
