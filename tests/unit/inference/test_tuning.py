import hypothesis.strategies as st
from hypothesis import given

from services.inference.core.tuning import CLOSE, NAMES, Measurements, choose, untuned, with_given

COSTS = st.dictionaries(st.integers(1, 64), st.floats(0.1, 1000), min_size=1, max_size=5)


SHORT_AND_SHARED = st.tuples(st.floats(0.1, 100), st.floats(0.1, 100))


@given(COSTS, COSTS, SHORT_AND_SHARED, SHORT_AND_SHARED, COSTS)
def test_what_is_chosen_is_close_to_the_best_and_the_smallest_of_these(threads, spins, on, off, rates):
    tuning = choose(Measurements(threads, spins, {True: on, False: off}, rates))
    for costs, value in (
        (threads, tuning.threads),
        (spins, tuning.spin_count),
        ({size: 1 / rate for size, rate in rates.items()}, tuning.step_tokens),
    ):
        assert costs[value] <= min(costs.values()) * CLOSE * 1.0001
        assert all(cost > min(costs.values()) * CLOSE * 0.9999 for other, cost in costs.items() if other < value)
    assert tuning.flash_attention == (sum(on) < sum(off))
    assert [choice.name for choice in tuning.choices] == list(NAMES)


def test_each_choice_says_what_was_measured():
    tuning = choose(
        Measurements({1: 14.0, 2: 8.0}, {0: 24.0, 300: 8.0}, {True: (7.0, 20.0), False: (8.0, 9.0)}, {64: 329.0})
    )
    said = {choice.name: (choice.value, choice.reason) for choice in tuning.choices}
    assert said["threads"] == ("2", "a step of 8 sequences took 14.0 ms at 1, 8.0 ms at 2")
    assert said["flash_attention"][0] == "false"
    assert said["flash_attention"][1].endswith("took 7.0 + 20.0 ms with, 8.0 + 9.0 ms without")


def test_what_was_set_wins_and_says_so():
    tuning = with_given(untuned(4, "not measured"), {"threads": 3, "flash_attention": True})
    said = {choice.name: (choice.value, choice.reason) for choice in tuning.choices}
    assert (tuning.threads, tuning.flash_attention) == (3, True)
    assert said["threads"] == ("3", "set")
    assert said["spin_count"][1] == "not measured"
