"""Pairs of evaluations whose true difference is known: each case has a chance of its own to be right."""

from random import Random

from gateway.evaluation.comparing.comparison import ScoredCase, compare
from gateway.evaluation.comparing.gate import Limits, failures_of

CASES = 200
EASY, HARD = 0.95, 0.2  # two of three cases are easy, so 70 % are right
SCORE = {"exact": ""}


def regressed(seed, points, cases=CASES):
    """Return the scores of two evaluations, drawn on their own; in the second each chance is smaller by the points."""
    random = Random(seed)  # noqa: S311 - it draws scores
    chances = [HARD if index % 3 == 2 else EASY for index in range(cases)]
    before = [float(random.random() < chance) for chance in chances]
    after = [float(random.random() < chance - points / 100) for chance in chances]
    return before, after


def evaluation(values, tags=(), key="k", scorer="exact"):
    """Return the cases of an evaluation with these scores."""
    return {f"c{index}": ScoredCase(key, tags, {scorer: value}) for index, value in enumerate(values)}


def is_caught(before, after, limits=None, seed=0):
    """Whether the gate fails."""
    comparison = compare(evaluation(before), evaluation(after), SCORE, seed=seed)
    return bool(failures_of({}, SCORE, limits or Limits(), comparison))
