"""Callers that were refused wait in the order of coming, and are let through when there may be room."""

import asyncio

from pagantic_common.rpc.waiting_line import WaitingLine


async def in_line(line, ticket, passed):
    if await line.wait(ticket, 5.0):
        passed.append(ticket)


async def test_each_call_that_ends_lets_the_first_of_the_line_through():
    line, passed = WaitingLine(), []
    tickets = [line.take_ticket() for _ in range(4)]
    waiting = [asyncio.create_task(in_line(line, ticket, passed)) for ticket in reversed(tickets)]
    await asyncio.sleep(0)
    assert len(line) == 4
    for _ in range(4):
        line.call_ended()
    await asyncio.gather(*waiting)
    assert passed == tickets


async def test_a_turn_that_comes_to_a_caller_who_leaves_goes_to_the_next():
    line, passed = WaitingLine(), []
    leaving = asyncio.create_task(line.wait(line.take_ticket(), 5.0))
    second, third = (asyncio.create_task(in_line(line, line.take_ticket(), passed)) for _ in range(2))
    await asyncio.sleep(0)
    line.call_ended()
    leaving.cancel()
    await asyncio.wait([leaving])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert passed == [1]
    third.cancel()
    await asyncio.wait([second, third])


async def test_the_line_moves_although_no_call_of_this_process_ends():
    line, passed = WaitingLine(), []
    await asyncio.gather(*(in_line(line, line.take_ticket(), passed) for _ in range(2)))
    assert passed == [0, 1]


async def test_who_waits_too_long_or_leaves_is_out_of_the_line():
    line = WaitingLine()
    assert not await line.wait(line.take_ticket(), 0.01)
    leaving = asyncio.create_task(line.wait(line.take_ticket(), 5.0))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert len(line) == 0
