"""WorkCache: bounded in bytes, one piece of work for all who ask at once, and nobody pays for another's leaving."""

import asyncio

import pytest

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unavailable
from pagantic_common.testing.clock import FakeClock
from pagantic_common.workers.work_cache import MAX_REFUSALS, REFUSAL_S, WorkCache


def cache_of(max_bytes=100, clock=None):
    return WorkCache(max_bytes=max_bytes, size_of=len, monotonic_s=(clock or FakeClock()).monotonic_s)


async def as_work(result):
    return result


async def was_kept(cache, key, result):
    async def work():
        return result

    found, kept = await cache.get(key, work)
    assert found == result
    return kept


async def test_the_least_recently_used_results_go_when_the_bytes_are_used_up():
    cache = cache_of(max_bytes=10)
    found = [await was_kept(cache, key, key * 5) for key in ("a", "b", "a", "c", "a", "b")]
    assert found == [False, False, True, False, True, False]
    assert cache.used_bytes == 10
    assert not await was_kept(cache, "large", "x" * 11)
    assert not await was_kept(cache, "large", "x" * 11)
    assert cache.used_bytes == 10  # a result larger than the cache takes no room
    assert await was_kept(cache, "a", "a" * 5)


async def test_a_result_that_is_dropped_is_made_anew():
    cache = cache_of()
    first = ["x"]
    assert await cache.get("a", lambda: as_work(first)) == (first, False)
    cache.drop("a", ["x"])  # an equal one that is another
    assert await cache.get("a", lambda: as_work(["y"])) == (first, True)
    cache.drop("a", first)
    assert cache.used_bytes == 0
    assert await cache.get("a", lambda: as_work(["y"])) == (["y"], False)


async def test_work_that_nobody_waits_for_is_given_up():
    cancelled = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    cache = cache_of()
    callers = [asyncio.create_task(cache.get("a", work)) for _ in range(2)]
    for left, caller in enumerate(callers, start=1):
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await asyncio.sleep(0)
        assert bool(cancelled) == (left == len(callers))


async def test_a_caller_that_comes_while_the_last_one_leaves_gets_its_own_answer():
    started = asyncio.Event()

    async def stuck():
        started.set()
        await asyncio.Event().wait()

    cache = cache_of()
    first = asyncio.create_task(cache.get("a", stuck))
    await started.wait()
    first.cancel()
    # Asks in the pass of the loop in which the first one leaves.
    second = asyncio.create_task(was_kept(cache, "a", "answer"))
    async with asyncio.timeout(60):
        assert await second is False
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await was_kept(cache, "a", "answer")


async def test_a_refusal_is_remembered_for_its_time_and_another_failure_is_not():
    clock = FakeClock()
    cache = cache_of(clock=clock)
    asked = []

    async def refuse():
        asked.append("refuse")
        raise InvalidRequest("too large", code=ErrorCode.CONSTRAINT_TOO_COMPLEX)

    async def fail():
        asked.append("fail")
        raise Unavailable("no worker")

    for _ in range(3):
        with pytest.raises(InvalidRequest, match="too large") as caught:
            await cache.get("bomb", refuse)
        assert caught.value.code is ErrorCode.CONSTRAINT_TOO_COMPLEX
    assert asked == ["refuse"]
    clock.advance(REFUSAL_S + 1)
    with pytest.raises(InvalidRequest):
        await cache.get("bomb", refuse)
    assert asked == ["refuse"] * 2
    for _ in range(2):
        with pytest.raises(Unavailable):
            await cache.get("busy", fail)
    assert asked[2:] == ["fail"] * 2
    for number in range(2 * MAX_REFUSALS):
        with pytest.raises(InvalidRequest):
            await cache.get(f"bomb {number}", refuse)
    assert len(cache._refused) == MAX_REFUSALS
