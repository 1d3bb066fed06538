"""Which models of a route are asked, and when; the numbers are those of the invariants."""

import math

from hypothesis import given
from hypothesis import strategies as st

from services.inference.core.remote.race import Race

STEPS = st.lists(
    st.tuples(st.sampled_from(["fail", "refuse", "tick"]), st.integers(0, 15), st.floats(0, 5)), max_size=60
)


@given(st.integers(1, 16), st.none() | st.floats(0, 3), STEPS)
def test_the_invariants_hold_for_every_course_of_events(count, hedge_after_s, steps):
    now_s = 0.0
    race = Race(count, hedge_after_s).begin(now_s)
    assert (race.started, race.running) == (1, frozenset({0}))
    is_refused = False
    for kind, number, passed_s in steps:
        if race.is_lost:
            break
        now_s += passed_s
        before = race
        running = sorted(race.running)
        position = running[number % len(running)]
        if kind == "tick":
            race = race.at(now_s)
            assert race.started == before.started or before.next_at_s <= now_s
        else:
            race = race.after_failure(position, now_s, may_others_succeed=kind == "fail")
            assert position not in race.running
        assert before.started <= race.started <= min(count, before.started + 1)  # 1 and 2
        assert race.running - before.running == frozenset(range(before.started, race.started))  # 1
        if kind == "refuse":
            is_refused = True
            assert race.started == before.started  # 3
        if kind == "fail" and before.started < count:
            assert race.started == before.started + 1
        assert race.is_lost == (not race.running)  # 4
        if race.next_at_s < math.inf:
            assert hedge_after_s is not None
            assert race.started < count
            assert race.running
    if race.is_lost:
        assert race.started == count or is_refused


def test_without_hedging_nobody_is_asked_for_silence():
    race = Race(2).begin(0.0)
    assert race.at(1e9) == race


def test_each_silence_asks_one_more_model():
    race = Race(3, 1.0).begin(0.0)
    assert race.at(0.9).started == 1
    race = race.at(1.0)
    assert (race.started, race.next_at_s) == (2, 2.0)
    race = race.at(5.0)
    assert (race.started, race.next_at_s) == (3, math.inf)
    assert race.at(99.0) == race


def test_the_earlier_model_wins_when_two_speak_at_once():
    race = Race(3, 0.0).begin(0.0).at(0.0).at(0.0)
    assert race.winner([2, 1]) == 1
    assert race.winner([]) is None
    assert race.after_failure(1, 0.0, may_others_succeed=True).winner([1, 2]) == 2
