from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.fitting import embed_beginnings, embed_ends
from tests.support.embedding import FirstLetters


class Counted(FirstLetters):
    """Keeps what it was asked for."""

    def __init__(self, max_chars=1_000_000):
        super().__init__()
        self.max_chars = max_chars
        self.calls = []

    async def embed(self, model, texts):
        self.calls.append(list(texts))
        return await super().embed(model, texts)


@given(st.lists(st.text(alphabet="ab ", max_size=40), min_size=1, max_size=12), st.integers(1, 40))
async def test_each_text_has_the_vector_of_a_beginning_that_fits(texts, max_chars):
    vectors = await embed_beginnings(Counted(max_chars), "m", texts)
    for text, vector in zip(texts, vectors, strict=True):
        part = text
        while len(part) > max_chars:
            part = text[: len(part) // 2]
        alone = await FirstLetters().embed("m", [part])
        assert np.array_equal(vector, alone[0])


async def test_texts_go_in_batches_of_256():
    embedder = Counted()
    assert len(await embed_beginnings(embedder, "m", ["a"] * 600)) == 600
    assert [len(call) for call in embedder.calls] == [256, 256, 88]


async def test_one_long_text_among_many_costs_few_calls():
    embedder = Counted(max_chars=10)
    await embed_beginnings(embedder, "m", [*["a"] * 255, "b" * 20])
    assert len(embedder.calls) <= 20


async def test_a_long_query_counts_by_its_end():
    embedder = Counted(max_chars=6)
    vectors = await embed_ends(embedder, "m", ["apple banana", "cherry"])
    assert np.array_equal(vectors, await FirstLetters().embed("m", ["banana", "cherry"]))


async def test_short_queries_take_one_call():
    embedder = Counted()
    await embed_ends(embedder, "m", ["apple", "banana", "cherry"])
    assert embedder.calls == [["apple", "banana", "cherry"]]


async def test_what_never_fits_is_refused():
    with pytest.raises(InvalidRequest) as raised:
        await embed_beginnings(Counted(max_chars=0), "m", ["a" * 1000])
    assert raised.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED
