import asyncio

import pytest

from pagantic_common.domain.errors import ErrorCode, Overloaded
from services.inference.app.turns import Turns


async def test_higher_priority_goes_first_and_equals_in_order():
    turns, order = Turns(8), []

    async def use(name, priority):
        async with turns.take(priority):
            order.append(name)
            await asyncio.sleep(0)

    async with turns.take(0):
        tasks = [asyncio.create_task(use(*job)) for job in (("a", 0), ("b", 5), ("c", 0), ("d", 5))]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["b", "d", "a", "c"]
    assert not turns.is_busy


async def test_one_more_than_the_queue_holds_is_overloaded_with_a_delay():
    turns = Turns(1)

    async def use():
        async with turns.take(0):
            pass

    async with turns.take(0):
        waiting = asyncio.create_task(use())
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as caught:
            async with turns.take(0):
                pass
        assert caught.value.code is ErrorCode.INFERENCE_OVERLOADED
        assert caught.value.retry_after_s
    await waiting


async def test_a_waiter_that_leaves_does_not_block_the_next():
    turns, used = Turns(4), []

    async def use(name):
        async with turns.take(0):
            used.append(name)

    async with turns.take(0):
        first, second = asyncio.create_task(use("first")), asyncio.create_task(use("second"))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
    await second
    assert used == ["second"]


async def test_a_turn_given_to_a_waiter_that_leaves_at_once_is_passed_on():
    turns, used = Turns(4), []

    async def use(name):
        async with turns.take(0):
            used.append(name)

    async with turns.take(0):
        first, second = asyncio.create_task(use("first")), asyncio.create_task(use("second"))
        await asyncio.sleep(0)
    first.cancel()  # its turn was given when the block above ended
    await second
    assert used == ["second"]
    assert not turns.is_busy
