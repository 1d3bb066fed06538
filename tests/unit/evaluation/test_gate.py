"""Comparisons of evaluations, and the gate: what it catches, and how seldom it is wrong."""

import pytest

from gateway.evaluation.comparing.comparison import ScoredCase, compare
from gateway.evaluation.comparing.gate import EVERY, Limits, failures_of
from tests.support.regressions import SCORE, evaluation, is_caught, regressed

SEEDS = 24


def test_a_regression_of_10_points_is_caught():
    caught = sum(is_caught(*regressed(seed, 10, cases=400), seed=seed) for seed in range(SEEDS))
    assert caught >= 0.95 * SEEDS
    caught = sum(is_caught(*regressed(seed, 10, cases=200), seed=seed) for seed in range(SEEDS))
    assert caught >= 0.75 * SEEDS


def test_of_answers_that_are_else_the_same_10_points_are_always_caught_and_1_never_is():
    right = [1.0] * 200
    for lost, expected in ((20, True), (2, False)):
        after = [0.0] * lost + right[lost:]
        assert all(is_caught(right, after, seed=seed) is expected for seed in range(10))


def test_a_regression_of_1_point_is_seldom_called_significant():
    caught = sum(is_caught(*regressed(seed, 1), seed=seed) for seed in range(SEEDS))
    assert caught <= 0.1 * SEEDS


def test_no_regression_is_seldom_called_one():
    caught = sum(is_caught(*regressed(seed, 0), seed=seed) for seed in range(SEEDS))
    assert caught <= 0.1 * SEEDS


def test_a_limit_is_held_whether_the_difference_is_significant_or_not():
    before, after = [1.0] * 10, [1.0] * 9 + [0.0]
    assert not is_caught(before, after)
    assert is_caught(before, after, Limits(max_regressions={EVERY: 0.05}))
    assert not is_caught(before, after, Limits(max_regressions={EVERY: 0.1})), "0.1 is not more than 0.1"
    assert not is_caught(after, before, Limits(max_regressions={EVERY: 0.0})), "it is better"


def test_a_significant_improvement_passes():
    assert not is_caught([0.0] * 50, [1.0] * 50)
    assert is_caught([1.0] * 50, [0.0] * 50)


def test_a_measure_fails_the_gate_only_beyond_a_limit_of_its_own():
    units = {"latency": "s"}
    comparison = compare(
        evaluation([1.0] * 50, scorer="latency"), evaluation([1.5] * 50, scorer="latency"), units, seed=0
    )
    assert comparison.overall[0].p < 0.001
    assert failures_of({}, units, Limits(max_regressions={EVERY: 0.0}), comparison) == []
    assert failures_of({}, units, Limits(max_regressions={"latency": 0.6}), comparison) == []
    (failure,) = failures_of({}, units, Limits(max_regressions={"latency": 0.4}), comparison)
    assert failure == "latency: from 1.0000 to 1.5000 s, worse by more than 0.4"


def test_a_mean_below_the_least_one_fails_and_so_does_a_score_without_cases():
    limits = Limits(min_scores={EVERY: 0.8, "judge": 0.5})
    units = {"exact": "", "judge": "", "latency": "s"}
    assert failures_of({"exact": 0.8, "judge": 0.5, "latency": 0.1}, units, limits, None) == []
    assert failures_of({"exact": 0.79, "judge": None, "latency": 0.1}, units, limits, None) == [
        "exact: the mean 0.7900 is below 0.8",
        "judge: no case has this score",
    ]
    with pytest.raises(ValueError, match="there is no score 'exakt': there are exact, judge, latency"):
        Limits(min_scores={"exakt": 1}).check_names(units)


def test_only_cases_that_ask_and_expect_the_same_are_compared():
    before = evaluation([1.0, 1.0, 1.0], tags=["a"]) | {"old": ScoredCase("k", (), {"exact": 0.0})}
    after = {
        "c0": ScoredCase("k", ["a"], {"exact": 0.0}),
        "c1": ScoredCase("changed", ["a"], {"exact": 0.0}),
        "c2": ScoredCase("k", ["b"], {"exact": None}),
        "new": ScoredCase("k", (), {"exact": 0.0}),
    }
    comparison = compare(before, after, SCORE)
    assert (comparison.pairs, comparison.only_before, comparison.only_after, comparison.changed) == (2, 1, 1, 1)
    (row,) = comparison.overall
    assert (row.pairs, row.before, row.after, row.difference) == (1, 1.0, 0.0, -1.0), "a missing score is no pair"
    assert [(row.tag, row.pairs) for row in comparison.by_tag] == [("a", 1)]


def test_several_scores_are_adjusted_together():
    names = [f"s{index}" for index in range(5)]
    before = {f"c{index}": ScoredCase("k", (), dict.fromkeys(names, 1.0)) for index in range(8)}
    after = {f"c{index}": ScoredCase("k", (), dict.fromkeys(names, 0.0)) for index in range(8)}
    *scores, measure = compare(before, after, {**dict.fromkeys(names[:4], ""), names[4]: "s"}).overall
    for row in scores:
        assert row.p == pytest.approx(2 / 2**8, abs=0.003)
        assert row.p_adjusted == pytest.approx(4 * row.p, rel=0.01)
    assert measure.p_adjusted == measure.p, "measures are counted on their own"
