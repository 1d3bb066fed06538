from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import InvalidRequest
from services.rerank.core.chunk import SCORERS, RerankPolicy, rerank

chunks = st.lists(
    st.builds(Chunk, id=st.text(max_size=3), content=st.text(alphabet="abc ", max_size=10), source=st.just("s")),
    max_size=10,
)
scorers = st.sampled_from([scorer.name for scorer in SCORERS])


def chunk(content, **fields):
    return Chunk(id=content, content=content, source="s", **fields)


@given(st.text(alphabet="abc", min_size=1, max_size=5), chunks, scorers)
def test_every_chunk_is_kept_once_best_first_within_the_scorers_range(query, given_chunks, scorer):
    ranked = rerank(query, given_chunks, RerankPolicy(scorer))
    assert sorted(one.content for one in ranked) == sorted(one.content for one in given_chunks)
    scores = [one.score for one in ranked]
    assert scores == sorted(scores, reverse=True)
    limits = next(one for one in SCORERS if one.name == scorer)
    assert all(limits.min_score <= score <= limits.max_score for score in scores)
    assert {one.score_kind for one in ranked} <= {scorer}


@given(chunks, scorers, st.floats(0, 1), st.integers(0, 5))
def test_bounds_only_drop_from_the_unbounded_result(given_chunks, scorer, min_score, top_k):
    whole = rerank("a b", given_chunks, RerankPolicy(scorer))
    kept = [one for one in whole if one.score >= min_score]
    assert rerank("a b", given_chunks, RerankPolicy(scorer, min_score, top_k)) == (kept[:top_k] if top_k else kept)


def test_ties_keep_their_order():
    ranked = rerank("x", [chunk("q"), chunk("x b"), chunk("p"), chunk("x a")], RerankPolicy("keyword"))
    assert [one.content for one in ranked] == ["x b", "x a", "q", "p"]


def test_keyword_is_the_fraction_of_distinct_terms():
    ranked = rerank("red fox red", [chunk("a fox"), chunk("Red FOX")], RerankPolicy("keyword"))
    assert [one.score for one in ranked] == [1.0, 0.5]


def test_default_scorer_is_bm25():
    assert rerank("a", [chunk("a")], RerankPolicy())[0].score_kind == "bm25"


def test_retrievers_score_stays_in_the_metadata():
    ranked = rerank("a", [chunk("a", score=0.25, score_kind="cosine", metadata_json='{"k": [1]}')], RerankPolicy())
    assert json.loads(ranked[0].metadata_json) == {
        "k": [1],
        "retriever_score": 0.25,
        "retriever_score_kind": "cosine",
    }


@pytest.mark.parametrize(
    ("query", "given_chunks", "policy", "problem"),
    [
        ("q", [], RerankPolicy("magic"), "'magic' is not known: use one of 'bm25', 'keyword'"),
        (" ", [], RerankPolicy(), "query is empty"),
        ("q", [chunk("a")] * 1001, RerankPolicy(), "1001 entries, at most 1000"),
        ("q", [], RerankPolicy(top_k=-1), "top_k is -1"),
        ("q", [chunk("a"), chunk("a", metadata_json="{")], RerankPolicy(), r"chunks\[1\].metadata_json is not JSON"),
        ("q", [chunk("a", metadata_json="[]")], RerankPolicy(), "not a JSON object"),
        ("q", [chunk("a", score=math.nan)], RerankPolicy(), "score is nan"),
    ],
)
def test_mistake_is_refused_with_its_place(query, given_chunks, policy, problem):
    with pytest.raises(InvalidRequest, match=problem):
        rerank(query, given_chunks, policy)


@pytest.mark.parametrize("metadata", ['{"a":1e999}', r'{"a":"\ud800"}', '{"a":"' + "x" * 30_000 + '"}'])
def test_metadata_that_could_not_be_told_again_is_refused(metadata):
    with pytest.raises(InvalidRequest, match=r"chunks\[0\].metadata_json"):
        rerank("cat", [Chunk("0", "cat", "s", metadata_json=metadata)], RerankPolicy())


def test_a_least_score_that_is_no_number_is_refused():
    with pytest.raises(InvalidRequest, match="min_score"):
        rerank("cat", [Chunk("0", "cat", "s")], RerankPolicy(min_score=float("nan")))
