"""Tenants share places, cells, prompt tokens and the queue, however much one of them asks for."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pagantic_common.domain.errors import Overloaded
from services.inference.core.scheduling.batching import Limits
from services.inference.core.scheduling.branches import Ended, Finished, Prompted
from tests.unit.inference.batching_model import Bench

QUEUED = 200


def steps_to_first_token(bench, number, limit=2000):
    for steps in range(1, limit):
        bench.step()
        if bench.of(Prompted, number):
            return steps
    raise AssertionError("no first token")


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 3))
def test_tenants_that_ask_without_end_get_places_by_their_weights(max_running, weight):
    bench = Bench(max_running=max_running, step_tokens=64, capacity=4000, sequences=32, queue_capacity=500)
    bench.scheduler.limits = Limits(64, max_running, 500, weights={"heavy": float(weight)})
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
    for index in range(6):
        bench.submit([97 + index], max_tokens=2, tenant="loud", priority=5)
    for index in range(3):
        bench.submit([110 + index], max_tokens=2, tenant="quiet")
    bench.run()
    finished = [event.number for event in bench.of(Finished)]
    assert [number > 6 for number in finished[:6]] in ([False, True] * 3, [True, False] * 3)


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
