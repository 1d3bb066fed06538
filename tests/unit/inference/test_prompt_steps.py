"""When a step of prompts may be larger than a step that outputs wait for."""

from itertools import pairwise

import pytest

from services.inference.core.scheduling.batch import StepBudget, Turn, _prompt_sizes
from services.inference.core.scheduling.branches import Progress
from services.inference.core.scheduling.drafting import StepCosts
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


@pytest.mark.parametrize("mixes_steps", [True, False])
def test_outputs_and_prompts_take_turns_where_the_engine_computes_them_faster_apart(mixes_steps):
    bench = Bench(step_tokens=32, mixes_steps=mixes_steps, capacity=2000)
    for letter in (97, 98):
        bench.submit([letter] * 20, max_tokens=40)
    for _ in range(4):
        bench.step()
    bench.submit([99] * 300, max_tokens=3)
    bench.run()
    kinds = [{len(part.tokens) > 16 for part in slices} for _, slices in bench.trace if slices]
    with_prompts = [True in kind for kind in kinds]
    assert any(kind == {True, False} for kind in kinds) is mixes_steps
    during = with_prompts[with_prompts.index(True, 4) :]
    first_after = len(during) - during[::-1].index(True)
    alternates = all(now != then for now, then in pairwise(during[:first_after]))
    assert alternates is not mixes_steps, during


def test_outputs_wait_for_a_shorter_step_of_prompts_than_a_lone_prompt_takes():
    bench = Bench(step_tokens=16, prompt_steps=8, mixes_steps=False, costs=lambda rows: rows * 0.003, capacity=2000)
    bench.submit([97, 98], max_tokens=60)
    bench.step()
    bench.submit([99] * 400, max_tokens=1)
    bench.run()
    assert max(sizes_of(bench)[1:20]) == 64, "it takes 0.19 s, and one of 128 tokens twice as long"


@pytest.mark.parametrize(
    ("budget", "sizes"),
    [
        (StepBudget(64), [64]),
        (StepBudget(64, 256), [256, 128, 64]),
        (StepBudget(128, 255), [255, 128]),
        (StepBudget(64, 102), [102, 64]),
        (StepBudget(63, 256, Turn.PROMPTS), [256, 128, 64]),
    ],
)
def test_steps_of_prompts_have_halves_of_the_largest_and_the_size_of_others(budget, sizes):
    assert _prompt_sizes(budget) == sizes


def test_a_size_that_was_measured_costs_what_it_did_and_others_at_most_what_known_ones_tell():
    costs = StepCosts()
    assert costs.expect(64) == 0
    costs.learn(90, 0.1)
    assert costs.expect(64) == 0.1
    costs.learn(64, 0.3)
    assert costs.expect(64) == 0.3


def test_what_steps_of_prompts_cost_says_nothing_of_others_where_they_take_turns():
    bench = Bench(step_tokens=16, prompt_steps=4, mixes_steps=False, costs=lambda _rows: 0.001, capacity=1000)
    bench.submit([97] * 200, max_tokens=4)
    bench.run()
    assert max(sizes_of(bench)) == 64
    assert max(bench.scheduler.costs._seconds) <= 16


def test_what_a_preempted_request_computes_again_may_take_large_steps():
    bench = Bench(step_tokens=16, prompt_steps=4, costs=lambda rows: rows * 0.001, capacity=1000)
    bench.submit([97] * 150, max_tokens=30)
    for _ in range(12):
        bench.step()
    (branch,) = bench.scheduler._seating.seated()
    bench.scheduler._seating.preempt(branch)
    plan = bench.step()
    assert sum(len(part.tokens) for part in plan.slices) == 64


def test_a_refused_step_of_prompts_takes_the_place_of_the_last_request_and_not_of_the_first():
    bench = Bench(mixes_steps=False, step_tokens=32, capacity=1000)
    first = bench.submit([97] * 200, max_tokens=4)
    outputs = [bench.submit([98 + i] * 4, seeds=(i,), max_tokens=30) for i in range(3)]
    while not bench.of(Progress, outputs[-1]):
        bench.step()
    plan = bench.scheduler.decide(0.0)
    while len(plan.slices) > 1:
        bench.events += plan.events + tuple(bench.scheduler.apply(plan, bench.engine.decode(plan.slices)))
        plan = bench.scheduler.decide(0.0)
    before = bench.scheduler.preemptions_total
    bench.scheduler.refuse()
    assert bench.scheduler.preemptions_total == before + 1
    seated = {branch.ticket.number for branch in bench.scheduler._seating.seated()}
    assert first in seated
    assert outputs[-1] not in seated
