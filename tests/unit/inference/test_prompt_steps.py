"""When a step of prompts may be larger than a step that outputs wait for."""

from tests.unit.inference.batching_model import Bench


def sizes_of(bench):
    return [sum(len(part.tokens) for part in slices) for _, slices in bench.trace]


def test_prompts_take_larger_steps_while_no_output_waits_and_these_are_short():
    bench = Bench(step_tokens=16, prompt_steps=4, costs=lambda rows: rows * 0.001, capacity=1000)
    bench.submit([97] * 150, max_tokens=3)
    bench.submit([98] * 90, max_tokens=3)
    bench.run()
    assert sizes_of(bench)[:4] == [16, 64, 64, 64]  # the first step shows what a step costs
    assert max(sizes_of(bench)[4:]) == 16, "the shorter prompt has its output, which waits for the longer one"


def test_an_output_waits_for_a_short_step_alone():
    bench = Bench(step_tokens=16, prompt_steps=4, costs=lambda rows: rows * 0.001, capacity=1000)
    bench.submit([97, 98], max_tokens=200)
    bench.step()
    bench.submit([99] * 150, max_tokens=3)
    bench.run()
    assert max(sizes_of(bench)) == 16


def test_a_slow_machine_takes_short_steps():
    bench = Bench(step_tokens=16, prompt_steps=4, costs=lambda rows: rows * 0.009, capacity=1000)
    bench.submit([97] * 150, max_tokens=1)
    bench.run()
    assert max(sizes_of(bench)) == 32, "a step of 32 tokens takes 0.29 s, and one of 64 twice as long"
