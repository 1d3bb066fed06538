"""What is chosen from measurements, and which measurements count."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from services.inference.core.tuning import (
    BUSY_CORES,
    CLOSE,
    FREE_S,
    IDLE_SHARE,
    MIN_ROUNDS,
    NAMES,
    SPREAD,
    Measurements,
    Round,
    Way,
    agreed,
    choose,
    follow,
    may_measure,
    untuned,
    with_given,
)

CORES = 2
DEFAULTS = untuned(CORES)
# What a quiet machine of two cores measured, and what it measured while something else used one of them.
QUIET = Measurements(
    {2: 20.0, 1: 36.0},
    {False: (12.0, 20.0, 30.0, 200.0), True: (13.0, 14.0, 52.0, 230.0)},
    {False: {64: 300.0, 128: 310.0}, True: {64: 250.0, 128: 320.0}},
)
BUSY = Measurements(
    {2: 224.2, 1: 199.3},
    {False: (40.0, 224.0, 90.0, 900.0), True: (35.0, 210.0, 60.0, 800.0)},
    {False: {64: 90.0, 128: 150.0}, True: {64: 80.0, 128: 100.0}},
)

TIMES = st.floats(0.1, 1000)
COSTS = st.dictionaries(st.integers(1, 64), TIMES, min_size=1, max_size=5)
ROW = st.tuples(TIMES, TIMES, TIMES, TIMES)
LOAD = st.tuples(*[st.floats(0, 100)] * 4)


def scaled(measured, factor):
    return Measurements(
        {key: value * factor for key, value in measured.threads_ms.items()},
        {key: tuple(value * factor for value in row) for key, row in measured.flash_ms.items()},
        measured.prompt_rates,
    )


@given(
    st.builds(
        Measurements,
        COSTS,
        st.fixed_dictionaries({False: ROW, True: ROW}),
        st.fixed_dictionaries({False: COSTS, True: COSTS}),
    ),
    st.builds(untuned, st.integers(1, 64), is_on_gpu=st.booleans()),
)
def test_the_defaults_stay_but_for_what_is_clearly_faster(measured, defaults):
    cores, threads = defaults.threads, measured.threads_ms
    tuning = choose(measured, defaults)
    rates = measured.prompt_rates[tuning.flash_attention]
    if tuning.threads != cores:
        assert cores not in threads or threads[tuning.threads] * CLOSE < threads[cores]
    else:
        assert all(cost * CLOSE >= threads[cores] for cost in threads.values())
    if tuning.flash_attention != defaults.flash_attention:
        costs = {is_on: sum(row) for is_on, row in measured.flash_ms.items()}
        assert costs[tuning.flash_attention] * CLOSE < costs[defaults.flash_attention]
    best = max(rates.values())
    assert rates[tuning.step_tokens] * CLOSE * 1.0001 >= best
    assert all(rate * CLOSE * 0.9999 < best for size, rate in rates.items() if size < tuning.step_tokens)
    assert tuning.spin_count == defaults.spin_count
    assert [choice.name for choice in tuning.choices] == list(NAMES)


def test_a_quiet_machine_uses_its_cores_and_no_flash_attention():
    tuning = choose(QUIET, DEFAULTS)
    assert (tuning.threads, tuning.flash_attention, tuning.step_tokens) == (2, False, 64)


def test_flash_attention_that_gains_with_short_sequences_and_loses_with_long_ones_is_not_chosen():
    measured = replace(QUIET, flash_ms={False: (8.0, 80.0, 40.0, 90.0), True: (8.0, 40.0, 55.0, 90.0)})
    assert not choose(measured, DEFAULTS).flash_attention
    measured = replace(QUIET, flash_ms={False: (8.0, 80.0, 40.0, 90.0), True: (8.0, 40.0, 41.0, 90.0)})
    assert choose(measured, DEFAULTS).flash_attention


def test_attention_follows_the_load_and_says_so():
    tuning = choose(QUIET, DEFAULTS)
    assert follow(tuning, (0.0, 10.0, 0.0, 0.0)) is tuning  # ten seconds tell too little
    short = follow(tuning, (10.0, 100.0, 0.0, 5.0))
    assert short == replace(tuning, flash_attention=True, step_tokens=128, choices=short.choices), (
        "only the attention, its step size and its reason differ"
    )
    (choice,) = (choice for choice in short.choices if choice.name == "flash_attention")
    share = (10 * 13 / 12 + 100 * 14 / 20 + 5 * 230 / 200) / 115
    assert (choice.value, choice.reason) == (
        "true",
        f"the load of the last minutes would take {share:.2f} of its time",
    )
    assert follow(short, (10.0, 20.0, 50.0, 35.0)).flash_attention is False
    assert follow(DEFAULTS, (0.0, 100.0, 0.0, 0.0)) is DEFAULTS  # nothing was measured


@given(ROW, ROW, LOAD, st.booleans())
def test_attention_changes_only_for_a_clear_gain_and_does_not_change_back_for_the_same_load(off, on, spent_s, is_on):
    tuning = replace(DEFAULTS, flash_attention=is_on, ways=(Way(off, 64), Way(on, 128)))
    followed = follow(tuning, spent_s)
    if followed is not tuning:
        now, then = (on, off) if is_on else (off, on)
        assert sum(spent * b / a for spent, a, b in zip(spent_s, now, then, strict=True)) * CLOSE < sum(spent_s)
        assert follow(followed, spent_s) is followed


def test_each_choice_says_what_was_measured():
    said = {choice.name: (choice.value, choice.reason) for choice in choose(QUIET, DEFAULTS).choices}
    assert said["threads"] == ("2", "a step of 8 sequences took 36.0 ms at 1, 20.0 ms at 2")
    assert said["flash_attention"][0] == "false"
    measured = "took 13.0 + 14.0 + 52.0 + 230.0 ms with, 12.0 + 20.0 + 30.0 + 200.0 ms without"
    assert said["flash_attention"][1].endswith(measured)


def test_what_was_set_wins_and_says_so():
    tuning = with_given(untuned(4), {"threads": 3, "flash_attention": True})
    said = {choice.name: (choice.value, choice.reason) for choice in tuning.choices}
    assert (tuning.threads, tuning.flash_attention) == (3, True)
    assert said["threads"] == ("3", "set")
    assert said["step_tokens"][1].startswith("default")


def test_rounds_count_when_they_repeat_and_the_machine_was_quiet():
    quiet = Round(QUIET)
    assert agreed([quiet] * (MIN_ROUNDS - 1)) is None
    assert agreed([quiet] * MIN_ROUNDS) == QUIET
    assert agreed([replace(quiet, others_cores=BUSY_CORES * 2)] * MIN_ROUNDS) is None
    assert agreed([replace(quiet, others_cores=4.0, spare_cores=6.0)] * MIN_ROUNDS) == QUIET  # there are cores enough


def test_one_disturbed_round_does_not_spoil_those_that_agree_and_is_not_in_their_median():
    spoilt = Round(BUSY)
    assert agreed([Round(QUIET)] * MIN_ROUNDS + [spoilt]) == QUIET


def test_rounds_that_scatter_do_not_count():
    rounds = [Round(scaled(QUIET, factor)) for factor in (1.0, 1 + 3 * SPREAD, 1 + 6 * SPREAD, 1 + 9 * SPREAD)]
    assert agreed(rounds) is None


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_measuring_takes_a_small_share_of_the_idle_time(spent_s, idle_s):
    assert may_measure(spent_s, idle_s) == (spent_s <= FREE_S + IDLE_SHARE * idle_s)
