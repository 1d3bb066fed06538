"""Ranks positions by their scores, fuses rankings, and diversifies a selection of texts.

An order is an array of positions, best first. Ties are in the order of the positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.intp]
Scores = NDArray[np.float64]  # one score for each position
Vectors = NDArray[np.float32]  # one row for each text

RRF_K: Final = 60
SMOOTHED: Final = 50  # number of candidates whose scores are smoothed
SMOOTHING_NEIGHBOURS: Final = 6  # Each candidate is its own first neighbour.
SAMPLING: Final = 16


class Fusion(StrEnum):
    """Methods of fusing the scores of several searches or scorers. The value is the score_kind."""

    RECIPROCAL_RANK = "rrf"
    WEIGHTED = "weighted"


def best_positions(scores: Scores, above: float, limit: int) -> Order:
    """Return the positions of the `limit` highest scores that exceed `above`."""
    if limit <= 0:
        return np.empty(0, dtype=np.intp)
    candidates = np.flatnonzero(scores > above)
    sample = scores[::SAMPLING]
    if len(candidates) > SAMPLING * limit and len(sample) > limit:
        # The limit-th highest score of a sample is at most the limit-th highest score of all. Positions that score
        # lower than this bound are therefore not among the best.
        bound = np.partition(sample, len(sample) - limit)[len(sample) - limit]
        candidates = candidates[scores[candidates] >= bound]
    order = np.argsort(-scores[candidates], kind="stable")[:limit]
    best: Order = candidates[order]
    return best


def fuse_ranks(legs: Sequence[tuple[Order, float]]) -> dict[int, float]:
    """Return, for each position, the weighted sum of 1 / (60 + rank) over the legs that rank it. Ranks start at 1.

    Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods"
    (2009), with their k. A leg is an order and its weight, which is 1 in the paper.
    """
    fused: dict[int, float] = {}
    for order, weight in legs:
        for rank, position in enumerate(order.tolist(), 1):
            fused[position] = fused.get(position, 0.0) + weight / (RRF_K + rank)
    return fused


def fuse_scores(legs: Sequence[tuple[Order, Scores, float]]) -> dict[int, float]:
    """Return, for each position, the weighted sum of the legs' scores, scaled to [0, 1] over each leg's order.

    A leg is an order, the scores of all positions, and its weight. A position missing from a leg's order scores 0 in
    that leg.
    """
    fused: dict[int, float] = {}
    for order, scores, weight in legs:
        if not len(order):
            continue
        leg_scores = scores[order] / 2  # The difference of two scores may overflow a double.
        lowest, highest = float(leg_scores.min()), float(leg_scores.max())
        span = highest - lowest or 1.0
        for position, score in zip(order.tolist(), leg_scores.tolist(), strict=True):
            scaled = (score - lowest) / span
            if highest == lowest:
                scaled = 1.0
            fused[position] = fused.get(position, 0.0) + weight * scaled
    return fused


def fuse_fractions(legs: Sequence[tuple[Order, Scores, float]]) -> dict[int, float]:
    """Return, for each position in any order, the weighted sum of its scores as fractions of each leg's highest score.

    A leg is an order, the scores of all positions, and its weight. A score below 0 counts as 0.
    """
    positions = np.unique(np.concatenate([order for order, _, _ in legs]))
    fused = np.zeros(len(positions))
    for _, scores, weight in legs:
        highest = scores.max(initial=0.0)
        if highest > 0:
            fused += weight * np.maximum(scores[positions], 0.0) / highest
    return dict(zip(positions.tolist(), fused.tolist(), strict=True))


def smooth(vectors: Vectors, scores: Scores, weight: float) -> Scores:
    """Return the candidates' scores, each drawn towards the scores of the nearest candidates.

    Diaz, "Regularizing ad hoc retrieval scores" (2005): relevant texts are rarely isolated. Each new score is the sum
    of (1 - weight) of the candidate's own score and `weight` of the mean of the smoothed scores of its neighbours,
    including itself, weighted by their cosines. The weight is at least 0 and below 1. Results lie between the lowest
    and the highest score.
    """
    count = len(scores)
    if not count or not weight:
        return scores
    cosines = np.maximum(vectors @ vectors.T, 0.0).astype(np.float64)
    np.fill_diagonal(cosines, 1.0)  # A candidate without a vector is still its own neighbour.
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :SMOOTHING_NEIGHBOURS]
    nearness = np.zeros_like(cosines)
    np.put_along_axis(nearness, order, np.take_along_axis(cosines, order, axis=1), axis=1)
    nearness /= nearness.sum(axis=1, keepdims=True)
    smoothed: Scores = np.linalg.solve(np.eye(count) - weight * nearness, (1 - weight) * scores)
    return smoothed


def diversify(vectors: Vectors, scores: Sequence[float], diversity: float, limit: int) -> list[int]:
    """Return the indexes of at most `limit` candidates by maximal marginal relevance.

    Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking" (1998): each next candidate has the highest
    value of (1 - diversity) * relevance - diversity * (highest cosine with the candidates already chosen). Relevance is
    the score scaled to [0, 1]. A diversity of 0 keeps the order by score.
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
