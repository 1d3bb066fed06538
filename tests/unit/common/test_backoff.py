"""Waits grow up to a maximum, and a longer stated wait wins."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.backoff import Backoff


@given(st.integers(1, 10**6), st.floats(0.01, 3600), st.floats(0.01, 86_400), st.floats(0, 1))
def test_waits_are_within_their_limits_and_do_not_shrink(failures, first_s, max_s, chance):
    backoff = Backoff(first_s, max_s)
    wait = backoff.wait_s(failures, chance=chance)
    assert min(first_s, max_s) / 2 <= wait <= max_s
    assert wait <= backoff.wait_s(failures + 1, chance=chance)


def test_waits_double_from_the_first_to_the_maximum():
    backoff = Backoff(0.2, 1.0)
    assert [backoff.wait_s(failures) for failures in (1, 2, 3, 4, 10**9)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert Backoff(1.0, factor=3.0).wait_s(3) == 9.0


@pytest.mark.parametrize(
    ("stated_s", "wait_s"), [(None, 0.2), (0.0, 0.2), (0.1, 0.2), (7.0, 7.0), (1e9, 30.0), (math.inf, 30.0)]
)
def test_a_longer_stated_wait_wins_up_to_its_own_maximum(stated_s, wait_s):
    assert Backoff(0.2, 2.0, max_stated_s=30.0).wait_s(1, stated_s=stated_s) == wait_s
