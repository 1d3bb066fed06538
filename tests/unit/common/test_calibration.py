from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pagantic_common.domain.text.calibration import (
    MAX_SCALING,
    Calibration,
    LabelCalibration,
    area_under_curve,
    brier_score,
    fit_calibration,
    one_against_rest,
    probability_of,
    shares_of,
)

log_odds = st.floats(-1e6, 1e6)
examples = st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=1, max_size=40)


@given(log_odds)
def test_the_probabilities_of_yes_and_no_add_up(odds):
    assert probability_of(odds) + probability_of(-odds) == pytest.approx(1.0)
    assert 0 <= probability_of(odds) <= 1
    if odds > 0:
        assert probability_of(odds) >= 0.5


def test_a_probability_is_the_share_of_yes():
    assert probability_of(math.log(0.3) - math.log(0.1)) == pytest.approx(0.75)
    assert (probability_of(math.inf), probability_of(-math.inf)) == (1.0, 0.0)


@given(examples)
def test_a_fit_is_finite_and_as_monotone_as_its_slope(pairs):
    line = fit_calibration(pairs)
    assert abs(line.slope) <= MAX_SCALING
    assert abs(line.intercept) <= MAX_SCALING
    found = [line.probability_of(odds) for odds in range(-5, 6)]
    assert found == sorted(found, reverse=line.slope < 0)


@given(examples)
def test_a_fit_has_the_mean_of_the_smoothed_labels(pairs):
    """The derivative by the intercept is 0 where the mean probability is that of the targets."""
    positives = sum(is_right for _, is_right in pairs)
    high, low = (positives + 1) / (positives + 2), 1 / (len(pairs) - positives + 2)
    line = fit_calibration(pairs)
    assume(max(abs(line.slope), abs(line.intercept)) < MAX_SCALING)
    found = sum(line.probability_of(odds) for odds, _ in pairs)
    assert found == pytest.approx(positives * high + (len(pairs) - positives) * low, abs=1e-3)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.booleans())
def test_labels_of_one_kind_give_a_sure_but_finite_probability(odds, label):
    line = fit_calibration([(one, label) for one in odds])
    expected = (len(odds) + 1) / (len(odds) + 2) if label else 1 / (len(odds) + 2)
    for one in odds:
        assert line.probability_of(one) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (0.3, 1.5), (1.5, -2.0), (-0.5, 0.2)])
def test_a_fit_recovers_the_line_that_labels_were_drawn_by(slope, intercept):
    random, true = Random(1), Calibration(slope, intercept)  # noqa: S311 - the same each time
    drawn = [random.gauss(0, 4) for _ in range(20_000)]
    line = fit_calibration([(odds, random.random() < true.probability_of(odds)) for odds in drawn])
    assert line.slope == pytest.approx(slope, abs=0.1)
    assert line.intercept == pytest.approx(intercept, abs=0.15)


def test_labels_that_the_log_odds_separate_have_a_finite_line():
    line = fit_calibration([(-2.0, False), (-1.0, False), (1.0, True), (2.0, True)])
    assert 0 < line.slope < 100
    assert abs(line.intercept) < 1e-6


def test_log_odds_that_hardly_differ_give_a_line_that_a_policy_takes():
    line = fit_calibration([(40.0, False), (40.00001, True)] * 20)
    assert line == Calibration(MAX_SCALING, -MAX_SCALING)
    level = fit_calibration([(-1e-6, False), (1e-6, True)] * 20)
    assert level.slope == MAX_SCALING
    assert level.probability_of(0.0) == pytest.approx(0.5)


def test_there_is_no_fit_without_examples():
    with pytest.raises(ValueError, match="no examples"):
        fit_calibration([])


def test_a_brier_score_is_the_mean_squared_distance():
    pairs = [(0.0, True), (0.0, False), (math.inf, True)]
    assert brier_score(Calibration().judge(pairs)) == pytest.approx((0.25 + 0.25 + 0) / 3)


@pytest.mark.parametrize(
    ("pairs", "area"),
    [
        ([(1.0, True), (0.0, False)], 1.0),
        ([(0.0, True), (1.0, False)], 0.0),
        ([(1.0, True), (1.0, False)], 0.5),
        ([(3.0, True), (1.0, True), (2.0, False), (0.0, False)], 0.75),
        ([(1.0, True)], None),
    ],
)
def test_the_area_is_the_chance_that_a_right_one_is_higher(pairs, area):
    assert area_under_curve(pairs) == area


@given(st.lists(st.tuples(st.integers(-3, 3).map(float), st.booleans()), max_size=40))
def test_the_area_is_that_of_all_pairs(pairs):
    right = [odds for odds, is_right in pairs if is_right]
    wrong = [odds for odds, is_right in pairs if not is_right]
    points = [1.0 if one > other else 0.5 if one == other else 0.0 for one in right for other in wrong]
    assert area_under_curve(pairs) == (sum(points) / len(points) if points else None)


@given(examples)
def test_the_area_of_opposite_log_odds_is_the_rest(pairs):
    area = area_under_curve(pairs)
    opposite = area_under_curve([(-odds, is_right) for odds, is_right in pairs])
    assert (area is None) == (opposite is None)
    if area is not None:
        assert area + opposite == pytest.approx(1.0)


def test_the_area_of_as_many_labels_as_there_may_be_compares_no_pairs():
    """The examples count how often they are compared, so that no time is measured."""
    compared = 0

    class Odds(float):
        __hash__ = float.__hash__

        def __lt__(self, other):
            nonlocal compared
            compared += 1
            return float.__lt__(self, other)

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return float.__eq__(self, other)

        def __gt__(self, other):
            nonlocal compared
            compared += 1
            return float.__gt__(self, other)

    count = 2000
    area_under_curve([(Odds(number), number % 2 == 0) for number in range(count)])
    assert compared < 100 * count


LOGPROBS = st.lists(st.floats(-900, 0), min_size=2, max_size=8)


@given(LOGPROBS)
def test_a_calibration_that_changes_nothing_gives_the_shares(logprobs):
    labels = [str(number) for number in range(len(logprobs))]
    shares = LabelCalibration("m", dict.fromkeys(labels, Calibration())).shares_of(labels, logprobs)
    assert shares == pytest.approx(shares_of(logprobs), abs=1e-12)
    assert sum(shares) == pytest.approx(1)


@given(LOGPROBS, st.floats(-1000, 1000), st.floats(-1000, 1000))
def test_calibrated_shares_are_probabilities_for_any_line(logprobs, slope, intercept):
    labels = [str(number) for number in range(len(logprobs))]
    shares = LabelCalibration("m", dict.fromkeys(labels, Calibration(slope, intercept))).shares_of(labels, logprobs)
    assert all(0 <= share <= 1 for share in shares)
    assert sum(shares) == pytest.approx(1)


def test_log_odds_of_one_against_the_rest():
    assert one_against_rest([math.log(0.5), math.log(0.3), math.log(0.2)]) == pytest.approx(
        (0.0, math.log(3 / 7), math.log(0.25))
    )
    assert one_against_rest([0.0, -2000.0]) == (700.0, -700.0)
