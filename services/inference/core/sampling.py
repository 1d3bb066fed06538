"""Picks a token from logits, in the order of llama.cpp's default chain.

That is: penalties and bias, top-k, top-p, min-p, temperature.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from services.inference.core.generation import Sampling

Logits = NDArray[np.float32]

GREEDY_BELOW = 1e-4  # a smaller temperature overflows the exponentials, and picks the best token anyway


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


def pick_token(logits: Logits, sampling: Sampling, draw: float) -> int:
    """Return the token that `draw`, uniform in [0, 1), stands for; at temperature 0 the most probable, lowest id first.

    Tokens whose logit is -inf are never picked; at least one must be finite.
    """
    if sampling.temperature < GREEDY_BELOW:
        return int(np.argmax(logits))
    finite = np.flatnonzero(np.isfinite(logits))
    if 0 < sampling.top_k < finite.size:
        finite = finite[np.argpartition(logits[finite], -sampling.top_k)[-sampling.top_k :]]
    order = finite[np.argsort(-logits[finite], kind="stable")]
    ranked = logits[order].astype(np.float64)
    probabilities = _softmax(ranked)
    kept = ranked.size
    if sampling.top_p < 1.0:
        kept = min(kept, int(np.searchsorted(np.cumsum(probabilities), sampling.top_p)) + 1)
    if sampling.min_p > 0.0:
        kept = min(kept, max(1, int(np.count_nonzero(probabilities >= sampling.min_p * probabilities[0]))))
    cumulative = np.cumsum(_softmax(ranked[:kept] / sampling.temperature))
    index = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    return int(order[min(index, kept - 1)])


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(values - values.max())
    normalized: NDArray[np.float64] = weights / weights.sum()
    return normalized
