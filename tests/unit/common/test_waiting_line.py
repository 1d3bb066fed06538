"""Callers that were refused wait in the order of coming, and are let through when there may be room."""

import asyncio

from pagantic_common.rpc.waiting_line import WaitingLine


async def in_line(line, name, passed, **options):
    if await line.wait(5.0, **options):
        passed.append(name)


async def test_each_call_that_ends_lets_the_first_of_the_line_through():
    line, passed = WaitingLine(), []
    waiting = [asyncio.create_task(in_line(line, name, passed)) for name in "abc"]
    await asyncio.sleep(0)
    refused = asyncio.create_task(in_line(line, "refused again", passed, is_first=True))
    await asyncio.sleep(0)
    assert len(line) == 4
    for _ in range(4):
        line.call_ended()
    await asyncio.gather(*waiting, refused)
    assert passed == ["refused again", "a", "b", "c"]


async def test_the_line_moves_although_no_call_of_this_process_ends():
    line, passed = WaitingLine(), []
    await asyncio.gather(*(in_line(line, name, passed) for name in "ab"))
    assert passed == ["a", "b"]


async def test_who_waits_too_long_or_leaves_is_out_of_the_line():
    line = WaitingLine()
    assert not await line.wait(0.01)
    leaving = asyncio.create_task(line.wait(5.0))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert len(line) == 0
