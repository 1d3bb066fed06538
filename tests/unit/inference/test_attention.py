"""Which kind a step is, and what a load is made of."""

import hypothesis.strategies as st
from hypothesis import given

from services.inference.core.attention import StepKind, StepLoad, kind_of
from services.inference.core.scheduling.batch import Slice


def slices(*parts):
    return [Slice(number, [1] * tokens, position, 1) for number, (position, tokens) in enumerate(parts)]


def test_a_step_is_named_by_what_its_attention_visits():
    assert kind_of(slices((500, 1)), 501) is StepKind.ALONE
    assert kind_of(slices(*[(99, 1)] * 8), 800) is StepKind.APART
    assert kind_of(slices(*[(500, 1)] * 8), 508) is StepKind.SHARED
    assert kind_of(slices((99, 1), (99, 1)), 200) is StepKind.SHARED  # of two, each attends to half
    assert kind_of(slices((99, 1), (0, 16)), 116) is StepKind.PROMPT
    assert kind_of(slices((99, 8)), 107) is StepKind.ALONE  # a draft


@given(st.lists(st.tuples(st.sampled_from(StepKind), st.floats(0, 10)), max_size=100))
def test_a_load_forgets_old_steps_by_halves(steps):
    load, total_s = StepLoad(), 0.0
    for kind, seconds in steps:
        load.add(kind, seconds)
        total_s += seconds
    assert len(load.seconds) == len(StepKind)
    assert min(total_s, 60.0) <= sum(load.seconds) + 1e-9
    assert sum(load.seconds) <= min(total_s, 120.0) + 1e-9
