"""The rule by which idle threads of the engine spin long or briefly."""

from hypothesis import given
from hypothesis import strategies as st

from services.inference.core.tuning import BUSY_CORES, QUIET_READINGS, SpinRule

QUIET, BUSY = BUSY_CORES, BUSY_CORES + 0.01


def test_threads_spin_briefly_until_the_machine_has_been_quiet_for_some_readings():
    rule = SpinRule()
    assert [rule.is_long(QUIET) for _ in range(QUIET_READINGS)] == [False] * (QUIET_READINGS - 1) + [True]


def test_one_busy_reading_ends_it_at_once():
    rule = SpinRule()
    for _ in range(QUIET_READINGS):
        rule.is_long(QUIET)
    assert not rule.is_long(BUSY)
    assert not rule.is_long(QUIET)


@given(st.lists(st.sampled_from([-1.0, 0.0, QUIET, BUSY, 2.0])))
def test_threads_spin_long_exactly_after_a_row_of_quiet_readings(readings):
    rule = SpinRule()
    for count, reading in enumerate(readings, 1):
        last = readings[max(0, count - QUIET_READINGS) : count]
        assert rule.is_long(reading) == (len(last) == QUIET_READINGS and max(last) <= BUSY_CORES)
