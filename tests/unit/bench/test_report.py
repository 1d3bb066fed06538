import dataclasses
import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from tests.bench.load import Answer, Measurement, Query
from tests.bench.report import Figures, block, figures_of, gain, median_of, percentile, summary

VALUES = st.lists(st.floats(0, 1e6), min_size=1)


def figures(**changes):
    plain = {field.name: 2.0 for field in dataclasses.fields(Figures)}
    return Figures(**(plain | changes))


def answer(sent_s, first_s, ended_s):
    return Answer(sent_s, first_s, ended_s, ("x",), 10, 20, 5)


@given(VALUES)
def test_the_50th_percentile_is_the_median(values):
    assert math.isclose(percentile(values, 0.5), statistics.median(values), rel_tol=1e-9)


@given(VALUES, st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values, fraction):
    assert min(values) <= percentile(values, fraction) <= max(values)


def test_percentiles_are_interpolated():
    assert percentile([4.0, 1.0, 2.0, 3.0, 5.0], 0.95) == 4.8


def test_gain_is_how_many_times_better_ours_is():
    assert gain(30.0, 10.0, is_more_better=True) == 3.0
    assert gain(1.0, 10.0, is_more_better=False) == 10.0
    assert gain(0.0, 10.0, is_more_better=False) == math.inf
    assert gain(0.0, 0.0, is_more_better=False) == 1.0
    assert gain(1.0, None, is_more_better=True) is None


def test_figures_sum_a_measurement_up():
    answers = (answer(0.0, 1.0, 2.0), answer(1.0, 4.0, 5.0))
    found = figures_of(Measurement((Query(), Query()), answers, 5.0, 0.5, 10), output_tokens=20, wrong_answers=1)
    assert (found.tokens_per_s, found.requests_per_s) == (4.0, 0.4)
    assert (found.first_p50_s, found.latency_p50_s) == (2.0, 3.0)
    assert (found.prompt_tokens, found.computed_prompt_tokens, found.output_tokens) == (40, 10, 10.0)
    assert (found.client_cpu_ratio, found.wrong_answers) == (0.1, 1)


def test_a_figure_that_a_side_does_not_tell_is_none():
    silent = dataclasses.replace(answer(0.0, 1.0, 2.0), prompt_tokens=None)
    found = figures_of(Measurement((Query(),), (silent,), 1.0, 0.0, None), output_tokens=1, wrong_answers=0)
    assert (found.prompt_tokens, found.computed_prompt_tokens) == (None, None)


def test_medians_are_of_each_figure_and_wrong_answers_are_summed():
    runs = [figures(tokens_per_s=value, prompt_tokens=None, wrong_answers=1) for value in (1.0, 9.0, 4.0)]
    found = median_of(runs)
    assert (found.tokens_per_s, found.prompt_tokens, found.wrong_answers) == (4.0, None, 3)


def test_a_block_has_both_sides_and_the_gain():
    lines = block("chat", figures(tokens_per_s=3.0), figures(), "llama-server").splitlines()
    assert lines[0] == "chat"
    assert lines[1].split() == ["ours", "llama-server", "gain"]
    assert lines[2].split() == ["tokens/s", "3.0", "2.0", "1.50"]


def test_a_block_without_a_peer_has_one_column():
    lines = block("chat", figures(), None, "").splitlines()
    assert lines[1].split() == ["ours"]
    assert lines[2].split() == ["tokens/s", "2.0"]


def test_the_summary_has_a_line_per_scenario_and_number_of_clients():
    lines = summary([("chat", 8, figures(first_p50_s=1.0), figures()), ("vote", 1, figures(), None)]).splitlines()
    assert lines[1].split()[:2] == ["chat", "8"]
    assert lines[1].endswith("1.000 / 2.000 = 2.00")
    assert lines[2].split() == ["vote", "1", "2.0", "2.00", "2.000"]
