"""Picks tokens from logits, in the order of llama.cpp's default chain.

The order is penalties and bias, top-k, top-p, min-p, temperature. A row of logits is ranked once, and any number of
candidates may then draw from it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from services.inference.core.generation import Sampling

Logits = NDArray[np.float32]

GREEDY_BELOW = 1e-4  # a lower temperature would overflow the exponentials, and picks the best token anyway
_NEAR_BEST = 8.0  # nearly all of the mass lies within this many nats of the best logit, so only these tokens are sorted
_TOP_NATS = (4.0, 8.0, np.inf)  # distances from the best logit for the search of the top k tokens, tried in order
_FEW_TOKENS = 256  # up to this many tokens, plain Python is faster than NumPy
_TABLE_ROWS = 64
_LEAST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class Choices:
    """The tokens that may come next, with their cumulative probabilities, which end at 1."""

    tokens: Sequence[int] | NDArray[np.int64]
    cumulative: Sequence[float] | NDArray[np.float64]

    def pick(self, draw: float) -> int:
        """Return the token that `draw` selects, where `draw` is uniform in [0, 1)."""
        index = bisect_right(self.cumulative, draw)
        return int(self.tokens[min(index, len(self.tokens) - 1)])


def certain(token: int) -> Choices:
    """Return choices that contain a single token."""
    return Choices((token,), (1.0,))


def adjust_logits(logits: Logits, sampling: Sampling, seen: Counter[int]) -> None:
    """Apply penalties for tokens in `seen` (token -> count) and the logit bias, in place."""
    if seen and (
        sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
    ):
        tokens = np.fromiter(seen.keys(), dtype=np.int64, count=len(seen))
        counts = np.fromiter(seen.values(), dtype=np.float32, count=len(seen))
        values = logits[tokens]
        values = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
        logits[tokens] = values - sampling.presence_penalty - counts * sampling.frequency_penalty
    for token, bias in sampling.logit_bias.items():
        if 0 <= token < logits.shape[0]:
            logits[token] += bias


def rank_tokens(logits: Logits, sampling: Sampling) -> Choices:
    """Return the tokens to draw from. At temperature 0, only the most probable token; ties go to the lowest id.

    A logit of -inf excludes its token. At least one logit must be finite.
    """
    if sampling.temperature < GREEDY_BELOW or sampling.top_k == 1:
        return certain(int(logits.argmax()))
    if 0 < sampling.top_k <= _FEW_TOKENS and (ranked := _best(logits, sampling.top_k)):
        return _choose(ranked, sampling)
    return _rank_many(logits, sampling)


def log_probabilities(logits: Logits) -> NDArray[np.float64]:
    """Return the natural logarithms of the tokens' probabilities."""
    values = logits.astype(np.float64)
    values -= values.max()
    result: NDArray[np.float64] = values - np.log(np.exp(values).sum())
    return result


def _best(logits: Logits, top_k: int) -> list[tuple[float, int]]:
    """Return the `top_k` greatest finite logits, negated, with their tokens, in order.

    Returns an empty list if too many logits are equal. The logits are laid out as a table. The k-th greatest column
    maximum is at most the k-th greatest logit, so only columns with at least this maximum are searched.
    """
    width = logits.size // _TABLE_ROWS
    if width <= top_k:
        return []
    table = logits[: _TABLE_ROWS * width].reshape(_TABLE_ROWS, width)
    maxima = table.max(axis=0)
    least = max(float(np.partition(maxima, -top_k)[-top_k]), _LEAST)
    columns = np.flatnonzero(maxima >= least)
    if columns.size > _FEW_TOKENS + top_k:
        return []
    near = table[:, columns].ravel()
    positions = np.flatnonzero(near >= least)
    if positions.size > _FEW_TOKENS + top_k:
        return []
    numbers, count = columns.tolist(), columns.size
    best = [
        (-value, index // count * width + numbers[index % count])
        for index, value in zip(positions.tolist(), near[positions].tolist(), strict=True)
    ]
    rest = logits[_TABLE_ROWS * width :].tolist()
    best += [(-value, token) for token, value in enumerate(rest, start=_TABLE_ROWS * width) if value >= least]
    best.sort()
    return best[:top_k]


def _choose(ranked: Sequence[tuple[float, int]], sampling: Sampling) -> Choices:
    """Return the choices among ranked tokens, given as pairs of negated logit and token."""
    best = ranked[0][0]
    weights = [math.exp(best - negated) for negated, _ in ranked]
    if sampling.top_p < 1.0:
        mass = list(accumulate(weights))
        weights = weights[: bisect_left(mass, sampling.top_p * mass[-1]) + 1]
    powers = [weight ** (1 / sampling.temperature) for weight in weights if weight >= sampling.min_p]
    total = sum(powers)
    cumulative = [share / total for share in accumulate(powers)]
    return Choices([token for _, token in ranked[: len(powers)]], cumulative)


def _rank_many(logits: Logits, sampling: Sampling) -> Choices:
    best = int(logits.argmax())
    if sampling.top_k > 0:
        tokens = _top_tokens(logits, float(logits[best]), sampling.top_k)
        weights = _weights(logits[tokens], float(logits[best]))
        total = float(weights.sum())
    else:
        weights = _weights(logits, float(logits[best]))
        total = float(weights.sum())
        tokens = _nucleus(weights, total, sampling)
        weights = weights[tokens]
    if sampling.top_p < 1.0:
        size = int(weights.cumsum().searchsorted(sampling.top_p * total)) + 1
        tokens, weights = tokens[:size], weights[:size]
    if sampling.min_p > 0.0:
        is_kept = weights >= sampling.min_p
        tokens, weights = tokens[is_kept], weights[is_kept]
    cumulative = (weights ** (1 / sampling.temperature)).cumsum()
    cumulative /= cumulative[-1]
    return Choices(tokens, cumulative)


def _weights(logits: Logits, best: float) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(logits.astype(np.float64) - best)
    return weights


def _top_tokens(logits: Logits, best: float, top_k: int) -> NDArray[np.int64]:
    """Return the `top_k` most probable finite tokens, in order. Ties are ordered by ascending id."""
    for nats in _TOP_NATS:
        tokens = np.flatnonzero(logits >= max(best - nats, _LEAST))
        if tokens.size >= top_k:
            break
    if tokens.size > top_k:
        values = logits[tokens]
        least = np.partition(values, -top_k)[-top_k]
        tokens = tokens[values >= least]  # ties may leave more than k tokens, so cut after the stable sort
    order = np.argsort(-logits[tokens], kind="stable")
    ranked: NDArray[np.int64] = tokens[order][:top_k]
    return ranked


def _nucleus(weights: NDArray[np.float64], total: float, sampling: Sampling) -> NDArray[np.int64]:
    """Return the tokens that hold the top-p mass, in order. At a top-p of 1, return all tokens in any order."""
    if sampling.top_p >= 1.0:
        return np.flatnonzero(weights >= max(sampling.min_p, np.finfo(np.float64).tiny))
    for nats in (_NEAR_BEST, 2 * _NEAR_BEST, np.inf):
        is_near = weights >= max(np.exp(-nats), np.finfo(np.float64).tiny)
        if float(weights[is_near].sum()) >= sampling.top_p * total:
            break
    tokens = np.flatnonzero(is_near)
    ranked: NDArray[np.int64] = tokens[np.argsort(-weights[tokens], kind="stable")]
    return ranked
