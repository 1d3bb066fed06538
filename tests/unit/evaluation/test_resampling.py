"""Statistics of paired differences: against all draws where these can be counted, and over many seeds."""

from itertools import product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evaluation.comparing.resampling import (
    RESAMPLES,
    adjust_for_several,
    mean_interval,
    p_of_no_difference,
)

DIFFERENCES = st.lists(st.floats(-1, 1).map(lambda value: round(value, 3)), min_size=1, max_size=9)


def exact_p(differences):
    """The share of all signs whose mean is as far from 0."""
    observed = abs(sum(differences))
    sums = [abs(sum(map(float.__mul__, signs, differences))) for signs in product((1.0, -1.0), repeat=len(differences))]
    return sum(total >= observed - 1e-9 for total in sums) / len(sums)


@given(DIFFERENCES)
def test_p_is_the_share_of_all_signs_that_give_as_large_a_difference(differences):
    exact = exact_p(differences)
    spread = sqrt(exact * (1 - exact) / RESAMPLES)
    assert p_of_no_difference(differences, seed=1) == pytest.approx(exact, abs=6 * spread + 2 / RESAMPLES)


@given(DIFFERENCES, st.integers(0, 2**32))
def test_p_is_the_same_for_the_opposite_difference_and_the_same_seed(differences, seed):
    opposite = [-value for value in differences]
    assert p_of_no_difference(differences, seed=seed) == p_of_no_difference(opposite, seed=seed)
    assert 0 < p_of_no_difference(differences, seed=seed) <= 1


def test_without_a_difference_p_is_1():
    assert p_of_no_difference([0.0, 0.0], seed=1) == 1
    assert p_of_no_difference([], seed=1) == 1


@pytest.mark.parametrize("values", [[0.0, 1.0, 1.0], [0.2, -0.4, 1.0, 0.0]])
def test_the_interval_is_that_of_all_resamples(values):
    means = [sum(drawn) / len(values) for drawn in product(values, repeat=len(values))]
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    interval = mean_interval(values, seed=3)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.integers(0, 2**32))
def test_the_interval_lies_within_the_values_and_follows_from_the_seed(values, seed):
    interval = mean_interval(values, seed=seed)
    slack = 1e-6 * max(map(abs, values)) + 1e-12
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack
    assert interval == mean_interval(values, seed=seed)


def test_one_value_has_no_interval():
    assert mean_interval([1.0], seed=1) is None


def test_large_samples_are_drawn_in_parts():
    values = np.random.default_rng(5).normal(0.3, 1.0, 5000).tolist()
    interval = mean_interval(values, seed=1)
    half = 1.96 * np.std(values) / sqrt(len(values))
    mean = float(np.mean(values))
    assert interval.low == pytest.approx(mean - half, abs=0.1 * half)
    assert interval.high == pytest.approx(mean + half, abs=0.1 * half)


def test_probabilities_are_adjusted_as_holm_does():
    # The example of R's p.adjust: p.adjust(c(0.01, 0.04, 0.03), "holm").
    assert adjust_for_several([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@given(st.lists(st.floats(0, 1), max_size=20))
def test_an_adjusted_probability_is_never_smaller_and_keeps_the_order(probabilities):
    adjusted = adjust_for_several(probabilities)
    assert all(one >= other for one, other in zip(adjusted, probabilities, strict=True))
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    assert [adjusted[index] for index in order] == sorted(adjusted)
    assert all(value <= 1 for value in adjusted)
