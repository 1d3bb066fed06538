"""Fair places: as many at once as there are, owners in turn, at most so many of one owner, and none is lost."""

import asyncio
import gc
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, Overloaded
from pagantic_common.workers.fair_places import FairPlaces, keep_place_until
from tests.support.examples import examples


async def hold(places, owner, log, go_on):
    async with places.place(owner):
        log.append(owner)
        await go_on.wait()


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_owners_take_turns_and_one_too_many_is_refused():
    places, log = FairPlaces(1, waiting=3, resource="the oven", code=ErrorCode.INFERENCE_OVERLOADED), []
    gates = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(hold(places, owner, log, gate)) for owner, gate in zip("aaab", gates, strict=True)]
    await settle()
    assert (places.taken, places.waiting) == (1, 3)
    with pytest.raises(Overloaded, match="3 requests wait for the oven already") as caught:
        await hold(places, "a", log, gates[0])
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.INFERENCE_OVERLOADED, 1.0)
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert log == ["a", "a", "b", "a"]
    assert (places.taken, places.waiting) == (0, 0)


async def test_an_owner_at_its_bound_waits_and_leaves_the_last_place_to_others():
    places, log, gate = FairPlaces(3, of_owner=2), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(places, owner, log, gate)) for owner in "aaab"]
    await settle()
    assert (log, places.taken, places.waiting) == (["a", "a", "b"], 3, 1)
    gate.set()
    await asyncio.gather(*tasks)
    assert (log, places.taken, places.waiting) == (["a", "a", "b", "a"], 0, 0)


async def test_a_place_goes_past_an_owner_at_its_bound_to_one_with_room():
    places, log = FairPlaces(2, of_owner=1), []
    gates = {owner: asyncio.Event() for owner in "abc"}
    tasks = [asyncio.create_task(hold(places, owner, log, gates[owner])) for owner in "abac"]
    await settle()
    assert log == ["a", "b"]
    gates["b"].set()
    await settle()
    assert log == ["a", "b", "c"], "a holds its place still, and waits longest"
    gates["a"].set()
    gates["c"].set()
    await asyncio.gather(*tasks)
    assert log == ["a", "b", "c", "a"]


async def test_the_only_user_of_a_local_system_may_take_every_place():
    places, log, gate = FairPlaces(3, of_owner=1), [], asyncio.Event()
    tasks = [asyncio.create_task(hold(places, None, log, gate)) for _ in range(3)]
    await settle()
    assert (places.taken, places.waiting) == (3, 0)
    gate.set()
    await asyncio.gather(*tasks)


async def test_a_thread_keeps_its_place_when_its_caller_has_left():
    places, log, go_on = FairPlaces(1), [], threading.Event()

    async def call(threads):
        async with places.place("a") as place:
            future = threads.submit(go_on.wait)
            place.keep_until(future)
            await asyncio.wrap_future(future)

    with ThreadPoolExecutor(1) as threads:
        caller = asyncio.create_task(call(threads))
        await settle()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        waiting = asyncio.create_task(hold(places, "b", log, asyncio.Event()))
        await settle()
        assert (places.taken, places.waiting, log) == (1, 1, [])
        go_on.set()
    await settle()
    assert (places.taken, places.waiting, log) == (1, 0, ["b"])
    waiting.cancel()


async def test_a_place_is_kept_until_its_block_and_all_its_futures_have_ended():
    places, loop = FairPlaces(1), asyncio.get_running_loop()
    early, late = loop.create_future(), loop.create_future()
    async with places.place("a") as place:
        place.keep_until(early)
        place.keep_until(late)
        early.set_result(None)
        await settle()
        assert places.taken == 1
    late.cancel()
    await settle()
    assert places.taken == 0


async def test_work_below_keeps_the_place_of_its_caller_and_no_other():
    places, loop = FairPlaces(2), asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()

    async def work(future):
        async with places.place("a"):
            await asyncio.sleep(0)
            keep_place_until(future)

    await asyncio.gather(work(first), work(second))
    await settle()
    assert places.taken == 2
    keep_place_until(first)  # no place is held here
    first.set_result(None)
    await settle()
    assert places.taken == 1
    second.set_result(None)
    await settle()
    assert places.taken == 0


async def test_a_place_that_was_passed_on_is_not_kept():
    places, future = FairPlaces(1), asyncio.get_running_loop().create_future()
    async with places.place("a") as place:
        pass
    place.keep_until(future)
    async with places.place("b"):
        future.set_result(None)
        await settle()
        assert places.taken == 1


@pytest.mark.parametrize("is_placed", [False, True])
async def test_the_failure_of_work_whose_caller_has_left_is_no_news(is_placed):
    loop, reports = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, report: reports.append(report))

    async def leave(future):
        keep_place_until(future)
        await asyncio.shield(future)

    async def work(future):
        async with FairPlaces(1).place("a") if is_placed else nullcontext():
            await leave(future)

    future = loop.create_future()
    caller = asyncio.create_task(work(future))
    await settle()
    caller.cancel()
    await settle()
    future.set_exception(ValueError("late"))
    await settle()
    del future, caller
    gc.collect()
    assert reports == []


def test_a_future_that_ends_after_its_loop_is_no_error():
    async def leave():
        async with FairPlaces(1).place("a") as place:
            place.keep_until(future)

    future = Future()
    asyncio.run(leave())
    future.set_result(None)


@settings(max_examples=examples(60))
@given(
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from(["enter", "leave", "cancel"]), st.integers(0, 9), st.sampled_from("ab"))),
)
def test_no_place_is_lost_however_calls_come_and_go(count, of_owner, waiting, steps):
    async def play():
        places, calls, running = FairPlaces(count, of_owner=of_owner, waiting=waiting), [], Counter()

        async def call(owner, gate):
            async with places.place(owner):
                running[owner] += 1
                assert running[owner] <= (of_owner or count)
                assert running.total() <= count
                try:
                    await gate.wait()
                finally:
                    running[owner] -= 1

        for kind, number, owner in steps:
            if kind == "enter":
                gate = asyncio.Event()
                calls.append((asyncio.create_task(call(owner, gate)), gate))
            elif calls:
                task, gate = calls[number % len(calls)]
                gate.set() if kind == "leave" else task.cancel()
            if number % 2:  # some events come together
                await settle()
                assert_nobody_with_room_waits(places, running, of_owner or count)
            assert places.taken <= count
            assert places.waiting <= waiting
        for _, gate in calls:
            gate.set()
        for task, _ in calls:
            with suppress(Overloaded, asyncio.CancelledError):
                await task
        assert (places.taken, places.waiting) == (0, 0)

    asyncio.run(play())


def assert_nobody_with_room_waits(places, running, of_owner):
    if places.taken < places.count:
        for owner in "ab":
            if running[owner] < of_owner:
                assert not any(turn.owner == owner for line in places._queue._lines.values() for turn in line)
