"""Curves that only rise, fitted to labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.text.isotonic import Curve, fit_curve

EXAMPLES = st.lists(st.tuples(st.integers(-8, 8).map(float), st.booleans()), min_size=1, max_size=30)


def by_the_formula_of_minima_and_maxima(examples):
    """Return the isotonic regression at each of the log-odds: the maximum of the minima of means (Robertson 1988)."""
    places = sorted({odds for odds, _ in examples})

    def mean(low, high):
        labels = [label for odds, label in examples if low <= odds <= high]
        return sum(labels) / len(labels)

    return {
        place: max(min(mean(low, high) for high in places if high >= place) for low in places if low <= place)
        for place in places
    }


@given(EXAMPLES)
def test_a_fit_is_the_isotonic_regression_within_what_the_labels_can_tell(examples):
    curve = fit_curve(examples)
    least = 1 / (len(examples) + 2)
    for odds, expected in by_the_formula_of_minima_and_maxima(examples).items():
        assert curve.probability_of(odds) == pytest.approx(min(max(expected, least), 1 - least))


@given(EXAMPLES, st.lists(st.floats(-700, 700), min_size=2))
def test_a_fit_rises_everywhere_and_is_never_certain(examples, odds):
    curve = fit_curve(examples)
    found = [curve.probability_of(one) for one in sorted(odds)]
    assert found == sorted(found)
    assert all(0 < one < 1 for one in found)


@given(EXAMPLES)
def test_a_fit_calibrates_the_labels_that_it_was_fitted_to(examples):
    found = sum(fit_curve(examples).probability_of(odds) for odds, _ in examples)
    away = len(examples) / (len(examples) + 2)  # Keeping away from 0 and 1 moves the sum by no more.
    assert found == pytest.approx(sum(label for _, label in examples), abs=away + 1e-9)


def test_a_curve_is_a_line_between_its_points_and_level_beyond_them():
    curve = Curve((-1.0, 1.0, 2.0), (0.2, 0.6, 0.6))
    assert [curve.probability_of(odds) for odds in (-9.0, -1.0, 0.0, 1.5, 9.0)] == pytest.approx(
        [0.2, 0.2, 0.4, 0.6, 0.6]
    )


@pytest.mark.parametrize(
    ("log_odds", "probabilities", "words"),
    [
        ((), (), "at least one point"),
        ((1.0,), (), "at least one point"),
        ((1.0, 1.0), (0.1, 0.2), "log-odds of a curve must rise"),
        ((0.0, 1.0), (0.3, 0.2), "probabilities of a curve must rise"),
        ((0.0,), (1.1,), "within"),
        ((0.0,), (float("nan"),), "finite"),
        ((float("-inf"), 0.0), (0.1, 0.2), "finite"),
        ((float("nan"), 0.0), (0.1, 0.2), "finite"),
        ((0.0,), (-0.1,), "within"),
    ],
)
def test_points_that_are_no_curve_are_refused(log_odds, probabilities, words):
    with pytest.raises(ValueError, match=words):
        Curve(log_odds, probabilities)


def test_no_examples_make_no_curve():
    with pytest.raises(ValueError, match="no examples"):
        fit_curve([])
