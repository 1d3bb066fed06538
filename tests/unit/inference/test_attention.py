"""Which kind a step is, and what a load is made of."""

import hypothesis.strategies as st
from hypothesis import given

from services.inference.core.tuning import StepKind, StepLoad, kind_of


def test_a_step_is_named_by_what_its_attention_visits():
    assert kind_of([(500, 1)], 501) is StepKind.ALONE
    assert kind_of([(99, 1)] * 8, 800) is StepKind.APART
    assert kind_of([(500, 1)] * 8, 508) is StepKind.SHARED
    assert kind_of([(99, 1), (99, 1)], 200) is StepKind.SHARED  # each of the two attends to half
    assert kind_of([(99, 1), (0, 33)], 133) is StepKind.PROMPT
    assert kind_of([(99, 32)], 131) is StepKind.ALONE  # a draft


PARTS = {
    StepKind.ALONE: [(500, 1)],
    StepKind.APART: [(99, 1)] * 8,
    StepKind.SHARED: [(750, 1)] * 8,
    StepKind.PROMPT: [(0, 64)],
}


@given(st.lists(st.tuples(st.sampled_from(StepKind), st.floats(0, 10)), max_size=100))
def test_a_load_forgets_old_steps_by_halves(steps):
    load, total_s = StepLoad(), 0.0
    for kind, seconds in steps:
        before_s = load.seconds[kind]
        load.add(PARTS[kind], 800, seconds)
        total_s += seconds
        assert load.seconds[kind] in {before_s + seconds, (before_s + seconds) / 2}
    load.add([], 800, 1.0)
    assert len(load.seconds) == len(StepKind)
    assert min(total_s, 60.0) <= sum(load.seconds) + 1e-9
    assert sum(load.seconds) <= min(total_s, 120.0) + 1e-9
