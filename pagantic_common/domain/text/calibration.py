"""Calibrates a model's probabilities of yes against labels, and measures their quality."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from pagantic_common.domain.text.isotonic import Curve

MAX_SCALING: Final = 1000.0  # The largest magnitude of the slope and the intercept.
# The exponential of these log-odds fits in a double.
MAX_LOG_ODDS: Final = 700.0
MAX_STEPS: Final = 100
MIN_STEP: Final = 1e-10
MIN_GRADIENT: Final = 1e-9
RIDGE: Final = 1e-12  # keeps the matrix of a Newton step invertible

BINS: Final = 10

Example = tuple[float, bool]  # a model's log-odds, and whether yes is right
Judged = tuple[float, bool]  # a model's probability, and whether yes is right


@dataclass(frozen=True, slots=True)
class Calibration:
    """A linear map of log-odds. The default map changes nothing."""

    slope: float = 1.0
    intercept: float = 0.0

    def probability_of(self, log_odds: float) -> float:
        """Return the calibrated probability of yes, given a model's log-odds of yes over no."""
        return probability_of(self.slope * log_odds + self.intercept)

    def judge(self, examples: Sequence[Example]) -> list[Judged]:
        """Return a calibrated probability for each example."""
        return [(self.probability_of(log_odds), is_right) for log_odds, is_right in examples]


def probability_of(log_odds: float) -> float:
    """Return the probability, in [0, 1], for these natural log-odds."""
    if log_odds >= 0:
        return 1 / (1 + math.exp(-log_odds))
    odds = math.exp(log_odds)
    return odds / (1 + odds)


def fit_calibration(examples: Sequence[Example]) -> Calibration:
    """Return the line that maximizes the likelihood of the labels. Raises ValueError if there are no examples.

    Platt, "Probabilistic Outputs for Support Vector Machines" (1999): the labels are smoothed, so that the line is
    finite even if all labels are equal or the log-odds separate them. The steps are Newton's with a line search, after
    Lin, Lin and Weng, "A Note on Platt's Probabilistic Outputs for Support Vector Machines" (2007). Slope and intercept
    are at most MAX_SCALING in magnitude; a steeper line is rotated about the mean of the log-odds.
    """
    if not examples:
        raise ValueError("there are no examples to calibrate by")
    mean = sum(log_odds for log_odds, _ in examples) / len(examples)
    spread = math.sqrt(sum((log_odds - mean) ** 2 for log_odds, _ in examples) / len(examples)) or 1.0
    positives = sum(is_right for _, is_right in examples)
    high, low = (positives + 1) / (positives + 2), 1 / (len(examples) - positives + 2)
    points = [((log_odds - mean) / spread, high if is_right else low) for log_odds, is_right in examples]
    line = Calibration(0.0, math.log((positives + 1) / (len(examples) - positives + 1)))
    for _ in range(MAX_STEPS):
        stepped = _stepped(line, points)
        if stepped is None:
            break
        line = stepped
    slope = _bounded(line.slope / spread)
    return Calibration(slope, _bounded(line.intercept - slope * mean))


def _bounded(value: float) -> float:
    return max(-MAX_SCALING, min(value, MAX_SCALING))


def _stepped(line: Calibration, points: Sequence[tuple[float, float]]) -> Calibration | None:
    """Return the line after a step of Newton's method, or None if no step improves it."""
    slope, intercept, by_slope, by_both, by_intercept = 0.0, 0.0, RIDGE, 0.0, RIDGE
    for at, target in points:
        probability = line.probability_of(at)
        slope += at * (probability - target)
        intercept += probability - target
        curvature = probability * (1 - probability)
        by_slope += at * at * curvature
        by_both += at * curvature
        by_intercept += curvature
    if max(abs(slope), abs(intercept)) < MIN_GRADIENT:
        return None
    determinant = by_slope * by_intercept - by_both * by_both
    ahead = (by_intercept * slope - by_both * intercept) / determinant
    aside = (by_slope * intercept - by_both * slope) / determinant
    loss, step = _loss_of(line, points), 1.0
    while step >= MIN_STEP:
        stepped = Calibration(line.slope - step * ahead, line.intercept - step * aside)
        if _loss_of(stepped, points) < loss:
            return stepped
        step /= 2
    return None


def _loss_of(line: Calibration, points: Sequence[tuple[float, float]]) -> float:
    """Return the negative log-likelihood of the targets."""
    loss = 0.0
    for at, target in points:
        log_odds = line.slope * at + line.intercept
        loss += max(log_odds, 0.0) - target * log_odds + math.log1p(math.exp(-abs(log_odds)))
    return loss


def brier_score(judged: Sequence[Judged]) -> float:
    """Return the mean squared distance of the probabilities from the labels.

    0 is perfect, and 0.25 is the score of always answering 0.5. Needs at least one label.
    """
    return sum((probability - is_right) ** 2 for probability, is_right in judged) / len(judged)


def expected_calibration_error(judged: Sequence[Judged]) -> float:
    """Return the gap between probabilities and the share of right labels, averaged over 10 bins of equal width.

    Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning" (2015). Needs at
    least one label.
    """
    bins: dict[int, list[Judged]] = {}
    for probability, is_right in judged:
        bins.setdefault(min(int(probability * BINS), BINS - 1), []).append((probability, is_right))
    distances = (abs(sum(probability - is_right for probability, is_right in own)) for own in bins.values())
    return sum(distances) / len(judged)


def area_under_curve(examples: Sequence[Example]) -> float | None:
    """Return the chance that a right example has higher odds or a higher probability than a wrong example.

    A tie counts as half, and guessing results in 0.5. Returns None if all labels are equal.
    """
    positives = sum(is_right for _, is_right in examples)
    negatives = len(examples) - positives
    if not positives or not negatives:
        return None
    # The groups of equal log-odds are read in ascending order. Each positive beats the negatives of lower groups and
    # ties with the negatives of its own group. Points are counted in halves, so that they stay integers.
    points = negatives_below = 0
    for _, group in groupby(sorted(examples), key=lambda example: example[0]):
        labels = [is_right for _, is_right in group]
        right = sum(labels)
        wrong = len(labels) - right
        points += right * (2 * negatives_below + wrong)
        negatives_below += wrong
    return points / (2 * positives * negatives)


@dataclass(frozen=True, slots=True)
class LabelCalibration:
    """A calibration of answers for each label, fitted to a model's answers. `maps` contains a map for each label."""

    model: str
    maps: Mapping[str, Calibration | Curve]

    def shares_of(self, labels: Sequence[str], logprobs: Sequence[float]) -> tuple[float, ...]:
        """Return the probabilities of labels: each is calibrated by its own map, and then all are scaled to sum to 1.

        Raises KeyError if a label has no map.
        """
        log_odds = one_against_rest(logprobs)
        scaled = [self.maps[label].probability_of(odds) for label, odds in zip(labels, log_odds, strict=True)]
        total = math.fsum(scaled)
        if total == 0:
            return shares_of(logprobs)
        return tuple(share / total for share in scaled)


def shares_of(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Return the probabilities, given as logarithms, scaled to sum to 1. At least one logarithm must be finite."""
    best = max(logprobs)
    weights = [math.exp(logprob - best) for logprob in logprobs]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def one_against_rest(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Return the log-odds of each of at least two probabilities against the sum of the rest, within MAX_LOG_ODDS."""
    odds = []
    for index, logprob in enumerate(logprobs):
        others = [other for position, other in enumerate(logprobs) if position != index]
        best = max(others)
        rest = best + math.log(math.fsum(math.exp(other - best) for other in others))
        odds.append(max(-MAX_LOG_ODDS, min(logprob - rest, MAX_LOG_ODDS)))
    return tuple(odds)
