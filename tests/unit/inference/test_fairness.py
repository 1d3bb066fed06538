"""Tenants share places, cells, prompt tokens and the queue, however much one of them asks for."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pagantic_common.domain.errors import Overloaded
from services.inference.core.scheduling.branches import Ended, Finished, Prompted
from tests.support.examples import examples
from tests.unit.inference.batching_model import Bench

QUEUED = 200


def steps_to_first_token(bench, number, limit=2000):
    for steps in range(1, limit):
        bench.step()
        if bench.of(Prompted, number):
            return steps
    raise AssertionError("no first token")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.fixed_dictionaries({"step_tokens": st.integers(2, 64), "max_running": st.integers(2, 16)}),
    st.fixed_dictionaries({"max_tokens": st.integers(1, 60), "priority": st.integers(-2, 2)}),
    st.integers(1, 60),
    st.integers(1, 120),
    st.integers(0, 40),
)
def test_two_hundred_queued_requests_of_a_tenant_add_at_most_one_step_to_the_share_of_another(
    options, flood, flood_size, size, head_start
):
    bench = Bench(capacity=4000, sequences=32, queue_capacity=QUEUED, **options)
    for index in range(QUEUED):
        bench.submit([97 + index % 20] * flood_size, seeds=(index,), tenant="flood", **flood)
    for _ in range(head_start):
        bench.step()
    number = bench.submit([120] * size, max_tokens=2, tenant="other")
    flooded = steps_to_first_token(bench, number)
    alone = Bench(step_tokens=options["step_tokens"] // 2, max_running=1, capacity=4000)
    assert flooded <= steps_to_first_token(alone, alone.submit([120] * size, max_tokens=2)) + 1


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(2, 9), st.integers(1, 3))
def test_tenants_that_ask_without_end_get_places_by_their_weights(max_running, weight):
    weights = {"heavy": float(weight)}
    bench = Bench(
        max_running=max_running, step_tokens=64, capacity=4000, sequences=32, queue_capacity=500, weights=weights
    )
    for index in range(120):
        for tenant in ("heavy", "light"):
            bench.submit([97 + index % 20, index], seeds=(index,), max_tokens=6, tenant=tenant)
    owners = {"heavy": 1, "light": 2}
    seen = {"heavy": 0, "light": 0}
    for _ in range(60):
        bench.step()
        for tenant, owner in owners.items():
            seen[tenant] += sum(branch.ticket.owner == owner for branch in bench.scheduler._seating.seated())
    assert seen["light"] > 0
    expected = weight / (weight + 1)
    assert abs(seen["heavy"] / sum(seen.values()) - expected) <= 1 / max_running


def test_a_tenant_alone_uses_every_place():
    bench = Bench(max_running=8, queue_capacity=100)
    for index in range(20):
        bench.submit([97 + index], max_tokens=5, tenant="only")
    bench.step()
    assert bench.scheduler.running == 8


def test_with_one_place_tenants_take_turns_whatever_their_priorities():
    bench = Bench(max_running=1, capacity=400, queue_capacity=100)
    loud = {bench.submit([97 + index], max_tokens=2, tenant="loud", priority=5) for index in range(6)}
    for index in range(3):
        bench.submit([110 + index], max_tokens=2, tenant="quiet", priority=-5)
    bench.run()
    assert [event.number in loud for event in bench.of(Finished)][:6] == [True, False] * 3


def test_newcomers_without_end_do_not_keep_a_tenant_waiting():
    bench = Bench(max_running=1, step_tokens=16, capacity=400, queue_capacity=1000)
    waiting = [bench.submit([97], max_tokens=3, tenant="early") for _ in range(2)][-1]
    for index in range(100):
        bench.submit([98], max_tokens=1, tenant=f"new-{index}")
        bench.submit([98], max_tokens=1, tenant=f"new-{index}-too")
        bench.step()
        if waiting in bench.outcomes():
            return
    raise AssertionError("the second request of the first tenant starved")


def test_tenants_in_the_same_round_do_not_take_each_others_cells():
    bench = Bench(capacity=100, step_tokens=32)
    for index in range(3):
        bench.submit([97 + index] * 60, max_tokens=10, tenant="a")
    bench.step()
    for index in range(2):
        bench.submit([107 + index] * 60, max_tokens=10, tenant="b")
    bench.run()
    assert bench.scheduler.preemptions_total == 0


def test_nobody_loses_cells_that_do_not_suffice():
    bench = Bench(capacity=100, step_tokens=32)
    for size in (60, 10):
        bench.submit([97] * size, max_tokens=12, tenant="a")
    bench.step()
    bench.step()
    bench.submit([98] * 60, max_tokens=2, tenant="b")  # the second of a would not make room enough
    bench.run()
    assert bench.scheduler.preemptions_total == 0


def test_a_tenant_takes_the_cells_of_another_ones_second_request():
    bench = Bench(capacity=100, step_tokens=32)
    for _ in range(2):
        bench.submit([97, *range(40)], max_tokens=40, tenant="a")
        bench.submit([96, *range(40)], max_tokens=4, tenant="a", priority=-1)
    for _ in range(4):
        bench.step()
    number = bench.submit([98] * 40, max_tokens=2, tenant="b")
    assert steps_to_first_token(bench, number) <= 4
    bench.run()


def test_a_branch_that_waits_for_cells_keeps_no_place_from_another():
    for max_running in (2, 3):
        bench = Bench(capacity=120, step_tokens=64, max_running=max_running, queue_capacity=50)
        for index in range(3):
            bench.submit([97 + index] * 30, max_tokens=12, tenant="a")
        bench.step()
        for index in range(3):
            bench.submit([110 + index] * 30, max_tokens=12, tenant="b")
        bench.run()
        assert len(bench.of(Finished)) == 6


def test_what_was_set_aside_says_what_it_would_have_said():
    bench = Bench(max_running=4, queue_capacity=100, capacity=400)
    first = [bench.submit([97 + index] * 5, seeds=(index,), max_tokens=30, tenant="first") for index in range(4)]
    for _ in range(6):
        bench.step()
    later = [bench.submit([105 + index] * 5, seeds=(index,), max_tokens=30, tenant="later") for index in range(4)]
    bench.step()
    assert bench.scheduler.preemptions_total == 2
    bench.run()
    for index, number in enumerate([*first, *later]):
        alone = Bench()
        same = alone.submit([(97 if number in first else 101) + index] * 5, seeds=(index % 4,), max_tokens=30)
        assert bench.text(number) == alone.run().text(same)
    assert len(bench.of(Ended)) == 8


def test_a_full_queue_keeps_a_share_for_the_tenant_that_has_not_filled_it():
    bench = Bench(max_running=1, queue_capacity=10)
    for _ in range(11):
        bench.submit([97], tenant="flood")
    with pytest.raises(Overloaded):
        bench.submit([97], tenant="flood")
    for _ in range(5):
        bench.submit([98], tenant="other")
    for tenant in ("flood", "other"):
        with pytest.raises(Overloaded):
            bench.submit([98], tenant=tenant)
    for _ in range(3):
        bench.submit([98], tenant="third")
    with pytest.raises(Overloaded):
        bench.submit([98], tenant="third")
