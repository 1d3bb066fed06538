"""Places of an engine: as many at once as it has, in turn, and none is lost."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.errors import Overloaded
from services.inference.app.remote import Turns
from tests.support.examples import examples


async def hold(turns, tenant, log, go_on):
    async with turns.take(tenant):
        log.append(tenant)
        await go_on.wait()


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_tenants_take_turns_and_one_too_many_is_refused():
    turns, log = Turns(1, 3), []
    gates = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(hold(turns, tenant, log, gate)) for tenant, gate in zip("aaab", gates, strict=True)]
    await settle()
    assert (turns.running, turns.waiting) == (1, 3)
    with pytest.raises(Overloaded):
        await hold(turns, "a", log, gates[0])
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert log == ["a", "a", "b", "a"]
    assert (turns.running, turns.waiting) == (0, 0)


@settings(max_examples=examples(60))
@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from(["enter", "leave", "cancel"]), st.integers(0, 9), st.sampled_from("ab"))),
)
def test_no_place_is_lost_however_calls_come_and_go(most, capacity, steps):
    async def play():
        turns, calls, log = Turns(most, capacity), [], []
        for kind, number, tenant in steps:
            if kind == "enter":
                gate = asyncio.Event()
                calls.append((asyncio.create_task(hold(turns, tenant, log, gate)), gate))
            elif calls:
                task, gate = calls[number % len(calls)]
                gate.set() if kind == "leave" else task.cancel()
            if number % 2:  # some events come together
                await settle()
            assert turns.running <= most
            assert turns.waiting <= capacity
        for _, gate in calls:
            gate.set()
        await asyncio.gather(*(task for task, _ in calls), return_exceptions=True)
        assert (turns.running, turns.waiting) == (0, 0)

    asyncio.run(play())
