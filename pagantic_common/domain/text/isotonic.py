"""Non-decreasing curves: the isotonic regression of labels on log-odds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise


@dataclass(frozen=True, slots=True)
class Curve:
    """Probabilities at ascending log-odds, linear between two points and constant beyond the ends.

    Raises ValueError if the points do not ascend, if a probability is outside [0, 1], or if a value is not finite.
    """

    log_odds: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that the points are valid."""
        if not self.log_odds or len(self.log_odds) != len(self.probabilities):
            raise ValueError("a curve needs at least one point, and a probability for each")
        if not all(map(math.isfinite, (*self.log_odds, *self.probabilities))):
            raise ValueError("the numbers of a curve must be finite")
        if any(here >= there for here, there in pairwise(self.log_odds)):
            raise ValueError("the log-odds of a curve must rise from point to point")
        if any(here > there for here, there in pairwise((0.0, *self.probabilities, 1.0))):
            raise ValueError("the probabilities of a curve must rise, within [0, 1]")

    def probability_of(self, log_odds: float) -> float:
        """Return the calibrated probability of yes, given a model's log-odds of yes over no."""
        above = bisect_right(self.log_odds, log_odds)
        if above == 0:
            return self.probabilities[0]
        if above == len(self.log_odds):
            return self.probabilities[-1]
        left, right = self.log_odds[above - 1], self.log_odds[above]
        low, high = self.probabilities[above - 1], self.probabilities[above]
        return low + (high - low) * ((log_odds - left) / (right - left))


@dataclass(slots=True)
class _Block:
    """Adjacent examples that share a probability."""

    first: float
    last: float
    positives: int
    count: int

    @property
    def mean(self) -> float:
        return self.positives / self.count


def fit_curve(examples: Sequence[tuple[float, bool]]) -> Curve:
    """Fit the non-decreasing curve with the least squared distance to the labels. Raises ValueError without examples.

    The algorithm pools adjacent violators (Ayer, Brunk, Ewing, Reid and Silverman, "An Empirical Distribution Function
    for Sampling with Incomplete Information", 1955). The probabilities are kept away from 0 and 1, because a few labels
    cannot rule out the opposite: with n labels they are within [1 / (n + 2), (n + 1) / (n + 2)].

    Args:
        examples: The log-odds that a model returned, each with whether yes was right.
    """
    if not examples:
        raise ValueError("there are no examples to calibrate by")
    blocks: list[_Block] = []
    for odds, group in groupby(sorted(examples), key=lambda example: example[0]):
        labels = [is_right for _, is_right in group]
        blocks.append(_Block(odds, odds, sum(labels), len(labels)))
        while len(blocks) > 1 and blocks[-2].mean >= blocks[-1].mean:
            last = blocks.pop()
            blocks[-1] = _Block(
                blocks[-1].first, last.last, blocks[-1].positives + last.positives, blocks[-1].count + last.count
            )
    least = 1 / (len(examples) + 2)
    points = {odds: min(max(block.mean, least), 1 - least) for block in blocks for odds in (block.first, block.last)}
    return Curve(tuple(points), tuple(points.values()))
