"""Statistics of paired differences by resampling. The same seed always produces the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95
MIN_PAIRS = 2  # The minimum number of pairs, because a single pair has no spread.
_NUMBERS_AT_ONCE = 2_000_000  # Limits the memory of a draw.
_TOLERANCE = 1e-12  # Sums of the same numbers in different orders differ by less than this relative amount.

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds of the 95 % confidence interval of a mean."""

    low: float
    high: float


def mean_interval(values: Sequence[float], *, seed: int) -> Interval | None:
    """Return the bootstrap percentile interval of the mean, or None for fewer than 2 values.

    For paired differences this is the paired bootstrap. Source: Efron, Tibshirani: An Introduction to the Bootstrap,
    13.
    """
    if len(values) < MIN_PAIRS:
        return None
    sample = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(seed)

    def draw(count: int) -> Values:
        means: Values = sample[random.integers(0, len(sample), size=(count, len(sample)))].mean(axis=1)
        return means

    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(_drawn(draw, len(sample)), [tail, 1 - tail])
    return Interval(float(low), float(high))


def p_of_no_difference(differences: Sequence[float], *, seed: int) -> float:
    """Return the two-sided probability of a mean at least this far from 0 if there were no difference.

    Without a difference, both signs of each value are equally likely, so the signs are drawn at random (a paired
    randomization test). The observed signs count as a draw, so p is valid for any number of pairs and is never 0. The
    result is 1 if every difference is 0 or if there are no pairs.
    """
    sample = np.asarray([value for value in differences if value], dtype=np.float64)
    if not len(sample):
        return 1.0
    random = np.random.default_rng(seed)
    observed = abs(sample.sum())
    least = observed - _TOLERANCE * np.abs(sample).sum()

    def draw(count: int) -> Values:
        signs = random.integers(0, 2, size=(count, len(sample)), dtype=np.int8) * 2 - 1
        return np.abs(signs @ sample)

    as_far = int((_drawn(draw, len(sample)) >= least).sum())
    return (as_far + 1) / (RESAMPLES + 1)


def adjust_for_several(probabilities: Sequence[float]) -> list[float]:
    """Adjust the probabilities for their number, to bound the chance of any false alarm. Source: Holm."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    adjusted = [1.0] * len(probabilities)
    highest = 0.0
    for rank, position in enumerate(order):
        highest = max(highest, probabilities[position] * (len(probabilities) - rank))
        adjusted[position] = min(1.0, highest)
    return adjusted


def _drawn(draw: Callable[[int], Values], size: int) -> Values:
    """Return RESAMPLES draws, computed in batches of bounded size."""
    at_once = max(1, _NUMBERS_AT_ONCE // size)
    counts = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    return np.concatenate([draw(count) for count in counts])
