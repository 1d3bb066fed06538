import asyncio

import pytest

from tests.bench.http_client import _chunks
from tests.bench.load import Answer, BenchError, Query, measure


class CountingSide:
    """Answers after a few turns of the loop, and remembers who was there at the same time."""

    name = "counting"

    def __init__(self, fails=False, counter=None):
        self.asked = []
        self.now = 0
        self.most = 0
        self.fails = fails
        self.counter = counter

    async def prepare(self, queries):
        assert not self.asked

    async def computed_prompt_tokens(self):
        return None if self.counter is None else self.counter * len(self.asked)

    async def ask(self, query):
        if self.fails:
            raise ValueError("broken")
        self.asked.append(query)
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(3):
            await asyncio.sleep(0)
        self.now -= 1
        return Answer(0.0, 1.0, 2.0, (query.text,), 1, 1, None if self.counter else 7)


QUERIES = [Query(text=str(index)) for index in range(16)]
WARM_UP = [Query(text="before")]


@pytest.mark.parametrize("clients", [1, 4, 8])
async def test_each_query_is_asked_once_by_so_many_clients_at_a_time(clients):
    side = CountingSide()
    measured = await measure(side, WARM_UP, QUERIES, clients)
    assert side.asked == WARM_UP + QUERIES
    assert side.most == clients
    assert [answer.texts[0] for answer in measured.answers] == [query.text for query in QUERIES]


async def test_prompt_tokens_are_summed_over_answers_that_tell_them():
    assert (await measure(CountingSide(), WARM_UP, QUERIES, 4)).computed_prompt_tokens == 16 * 7


async def test_prompt_tokens_are_what_the_counter_rose_by_where_answers_do_not_tell():
    assert (await measure(CountingSide(counter=3), WARM_UP, QUERIES, 4)).computed_prompt_tokens == 16 * 3


async def test_a_side_that_fails_ends_the_bench_with_its_reason():
    with pytest.raises(BenchError, match="counting: broken"):
        await measure(CountingSide(fails=True), [], QUERIES, 4)


async def test_chunks_of_a_reply_are_put_together_wherever_they_are_cut():
    reader = asyncio.StreamReader()
    reader.feed_data(b"4\r\nda")
    reader.feed_data(b"ta\r\n3;x=1\r\n: 1\r\n0\r\n\r\n")
    assert [piece async for piece in _chunks(reader)] == [b"data", b": 1"]


async def test_a_reply_that_is_cut_off_is_told():
    reader = asyncio.StreamReader()
    reader.feed_data(b"4\r\nda")
    reader.feed_eof()
    with pytest.raises(BenchError, match="closed the connection"):
        _ = [piece async for piece in _chunks(reader)]
