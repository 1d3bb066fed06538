from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import Chunk, lay_out
from pagantic_common.domain.errors import InvalidRequest
from services.context.app.building import ContextBuilding
from services.context.app.retrieval import Found
from services.context.core.policy import RetrievalPolicy


class ScriptedRetrieval:
    """Finds always the same."""

    def __init__(self, *chunks):
        self.found = Found(chunks)

    async def retrieve(self, _tenant, _query, _policy, more_queries=()):
        self.more_queries = more_queries
        return self.found


class WordCounter:
    """Counts words, and one token less for a whole of many lines, as merges over line ends do."""

    def __init__(self):
        self.calls = 0

    async def count(self, _model, texts):
        self.calls += 1
        return [max(1, len(text.split()) - text.count("\n") // 3) for text in texts]


def chunk(content, chunk_id="0"):
    return Chunk(chunk_id, content, "s", 1.0, "bm25")


POLICY = RetrievalPolicy("docs")


async def test_nothing_found_gives_no_message():
    counter = WordCounter()
    built = await ContextBuilding(ScriptedRetrieval(), counter, 100).build("acme", "q", POLICY, [], "")
    assert (built.text, built.chunks, built.coverage, counter.calls) == ("", (), 0.0, 0)


async def test_given_chunks_are_laid_out_as_they_are():
    given_chunks = [chunk("b b"), chunk("a"), chunk("a")]
    building = ContextBuilding(ScriptedRetrieval(chunk("never")), WordCounter(), 100)
    built = await building.build("acme", "", POLICY, given_chunks, "")
    assert built.chunks == tuple(given_chunks)
    assert built.text == lay_out(given_chunks, is_fenced=True)


async def test_without_a_budget_nothing_is_counted():
    counter = WordCounter()
    built = await ContextBuilding(ScriptedRetrieval(chunk("a")), counter, 0).build("acme", "a b", POLICY, [], "")
    assert (built.token_count, counter.calls, built.coverage) == (0, 0, 0.5)


async def test_negative_budget_is_refused():
    with pytest.raises(InvalidRequest, match="max_tokens"):
        await ContextBuilding(ScriptedRetrieval(), WordCounter(), 0).build(
            "acme", "q", RetrievalPolicy("docs", max_tokens=-1), [], ""
        )


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 80))
async def test_the_longest_prefix_that_fits_is_kept(sizes, budget):
    chunks = [chunk("w " * size, str(number)) for number, size in enumerate(sizes)]
    counter = WordCounter()
    policy = RetrievalPolicy("docs", max_tokens=budget)
    built = await ContextBuilding(ScriptedRetrieval(*chunks), counter, 5).build("acme", "w", policy, [], "")
    counts = [
        (await counter.count("", [lay_out(chunks[:kept], is_fenced=True)]))[0] for kept in range(1, len(chunks) + 1)
    ]
    fitting = [kept for kept, tokens in enumerate(counts, 1) if tokens <= budget]
    assert len(built.chunks) == (max(fitting) if fitting else 0)
    assert built.chunks == tuple(chunks[: len(built.chunks)])
    assert built.token_count == (counts[len(built.chunks) - 1] if fitting else 0)


async def test_a_wrong_estimate_costs_few_counts():
    class Misleading(WordCounter):
        async def count(self, _model, texts):
            self.calls += 1
            return [1 if len(texts) > 1 else text.count("\n") + 1 for text in texts]

    counter = Misleading()
    chunks = [chunk("a\n" * 9, str(number)) for number in range(1000)]
    built = await ContextBuilding(ScriptedRetrieval(), counter, 1000).build("acme", "a", POLICY, chunks, "")
    assert built.token_count <= 1000
    assert len(built.chunks) == pytest.approx(100, abs=2)
    assert counter.calls <= 14


async def test_chunks_that_are_given_are_looked_at():
    for given_chunk in (
        Chunk("0", ".", "s", metadata_json="NaN"),
        Chunk("0", ".", "s", float("nan")),
        chunk("x" * 100_001),
    ):
        with pytest.raises(InvalidRequest, match=r"chunks\[0\]"):
            await ContextBuilding(ScriptedRetrieval(), WordCounter(), 10).build("acme", "q", POLICY, [given_chunk], "")
