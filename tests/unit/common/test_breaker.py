"""The breaker's rules; numbers are those of its module."""

from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.calls.breaker import FIRST_OPEN_S, MAX_OPEN_S, PROBE_S, THRESHOLD, Breaker

SHORT_S = 0.001


def opened(now_s=0.0):
    breaker = Breaker()
    for _ in range(THRESHOLD):
        assert breaker.admit(now_s) == 0.0
        breaker.note_failure(now_s)
    return breaker


def test_failures_in_a_row_open_it_and_an_answer_between_them_does_not_1():
    breaker = Breaker()
    for _ in range(3):
        for _ in range(THRESHOLD - 1):
            breaker.note_failure(0.0)
        breaker.note_answer()
    assert not breaker.is_open
    assert opened().is_open


def test_nothing_is_called_while_it_is_open_2():
    breaker = opened()
    assert breaker.admit(0.0) == FIRST_OPEN_S
    assert 0 < breaker.admit(FIRST_OPEN_S - SHORT_S) < FIRST_OPEN_S


def test_failures_of_calls_that_began_before_do_not_prolong_it_2():
    breaker = opened()
    breaker.note_failure(FIRST_OPEN_S / 2)
    assert breaker.admit(FIRST_OPEN_S) == 0.0


def test_one_probe_is_called_and_its_failure_opens_for_twice_as_long_3():
    breaker = opened()
    assert breaker.admit(FIRST_OPEN_S) == 0.0
    assert breaker.admit(FIRST_OPEN_S) > 0
    breaker.note_failure(FIRST_OPEN_S)
    assert breaker.admit(FIRST_OPEN_S) == 2 * FIRST_OPEN_S


def test_the_interval_is_bounded_3():
    breaker, now_s = opened(), 0.0
    for _ in range(10):
        now_s += breaker.admit(now_s)
        assert breaker.admit(now_s) == 0.0
        breaker.note_failure(now_s)
    assert breaker.admit(now_s) == MAX_OPEN_S


def test_a_probe_that_takes_its_time_is_believed_until_the_next_failure_4():
    breaker = opened()
    breaker.admit(FIRST_OPEN_S)
    assert breaker.admit(FIRST_OPEN_S + PROBE_S - SHORT_S) > 0
    later_s = FIRST_OPEN_S + PROBE_S
    assert breaker.admit(later_s) == breaker.admit(later_s) == 0.0
    breaker.note_failure(later_s)
    assert breaker.is_open


def test_an_answer_closes_it_and_all_is_forgotten_5():
    breaker = opened()
    breaker.admit(FIRST_OPEN_S)
    breaker.note_answer()
    for _ in range(THRESHOLD - 1):
        assert breaker.admit(FIRST_OPEN_S) == 0.0
        breaker.note_failure(FIRST_OPEN_S)
    assert not breaker.is_open


STEPS = st.lists(
    st.tuples(
        st.floats(0, 3 * MAX_OPEN_S) | st.sampled_from([0.0, FIRST_OPEN_S, PROBE_S, MAX_OPEN_S]),
        st.sampled_from(["admit", "answer", "failure", "failure"]),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_it_opens_only_on_failures_and_never_for_long(steps):
    breaker, now_s, failures, admitted_s = Breaker(), 0.0, 0, None
    for pause_s, what in steps:
        now_s += pause_s
        was_open = breaker.is_open
        if what == "answer":
            breaker.note_answer()
            failures, admitted_s = 0, None
            assert not breaker.is_open
        elif what == "failure":
            breaker.note_failure(now_s)
            failures, admitted_s = failures + 1, None
        else:
            wait_s = breaker.admit(now_s)
            assert 0.0 <= wait_s <= MAX_OPEN_S
            if wait_s > 0:
                assert breaker.is_open
                assert admitted_s is None or now_s - admitted_s < PROBE_S
            elif breaker.is_open:  # a probe, and the only one for its time
                assert was_open
                assert admitted_s is None
                admitted_s = now_s
            else:
                admitted_s = None
        if breaker.is_open:
            assert failures >= THRESHOLD
    assert breaker.admit(now_s + MAX_OPEN_S) == 0.0  # so a service that is back is called again
