from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.ranking import Fusion
from services.rerank.app.reranking import Reranking
from services.rerank.app.scorers import EmbeddingScorer, local_scorers
from services.rerank.core.policy import RerankPolicy, WeightedScorer
from tests.support.embedding import FirstLetters

EMBEDDING = EmbeddingScorer(FirstLetters(), "letters")
RERANKING = Reranking([*local_scorers(), EMBEDDING], EMBEDDING, {"bm25": 1.0})

chunks = st.lists(
    st.builds(
        Chunk,
        id=st.text(max_size=3),
        content=st.text(alphabet="abc ", max_size=10),
        source=st.sampled_from("stu"),
        score=st.floats(-10, 10),
    ),
    max_size=10,
)
names = [info.name for info, _ in RERANKING.infos]
scorers = st.sampled_from(names)
fusions = st.builds(
    lambda several, weights, fusion: RerankPolicy(
        tuple(WeightedScorer(name, weight) for name, weight in zip(several, weights, strict=False)), fusion=fusion
    ),
    st.permutations(names),
    st.lists(st.floats(0.01, 1000), min_size=2, max_size=len(names)),
    st.sampled_from(Fusion),
)


def rerank(query, given_chunks, policy):
    return asyncio.run(RERANKING.rerank(query, given_chunks, policy))


def by(scorer, **fields):
    """A policy with one scorer."""
    return RerankPolicy((WeightedScorer(scorer),), **fields)


def chunk(content, **fields):
    return Chunk(id=content, content=content, source="s", **fields)


@given(st.text(alphabet="abc", min_size=1, max_size=5), chunks, scorers)
def test_every_chunk_is_kept_once_best_first_within_the_scorers_range(query, given_chunks, scorer):
    ranked = rerank(query, given_chunks, by(scorer))
    assert sorted(one.content for one in ranked) == sorted(one.content for one in given_chunks)
    scores = [one.score for one in ranked]
    assert scores == sorted(scores, reverse=True)
    limits = next(info for info, _ in RERANKING.infos if info.name == scorer)
    assert all(limits.min_score <= score <= limits.max_score for score in scores)
    assert {one.score_kind for one in ranked} <= {scorer}


@given(chunks, scorers, st.floats(0, 1), st.integers(0, 5))
def test_bounds_only_drop_from_the_unbounded_result(given_chunks, scorer, min_score, top_k):
    whole = rerank("a b", given_chunks, by(scorer))
    kept = [one for one in whole if one.score >= min_score]
    bounded = rerank("a b", given_chunks, by(scorer, min_score=min_score, top_k=top_k))
    assert bounded == (kept[:top_k] if top_k else kept)


def test_ties_keep_their_order():
    ranked = rerank("x", [chunk("q"), chunk("x b"), chunk("p"), chunk("x a")], by("keyword"))
    assert [one.content for one in ranked] == ["x b", "x a", "q", "p"]


def test_keyword_is_the_fraction_of_distinct_terms():
    ranked = rerank("red fox red", [chunk("a fox"), chunk("Red FOX")], by("keyword"))
    assert [one.score for one in ranked] == [1.0, 0.5]


def test_a_policy_without_scorers_has_those_of_the_default():
    fused = Reranking([*local_scorers(), EMBEDDING], EMBEDDING, {"retriever": 0.25, "keyword": 0.75})
    given_chunks = [chunk("a b", score=1.0), chunk("b", score=5.0), chunk("a", score=3.0)]
    ranked = asyncio.run(fused.rerank("a b", given_chunks, RerankPolicy()))
    assert [(one.content, one.score, one.score_kind) for one in ranked] == [
        ("a b", 0.75, "weighted"),
        ("b", 0.25, "weighted"),
        ("a", 0.125, "weighted"),
    ]
    alone = asyncio.run(fused.rerank("a b", given_chunks, by("keyword")))
    assert [one.score for one in alone] == [1.0, 0.5, 0.5]


def test_scorers_of_the_default_are_listed_first_with_their_weights():
    fused = Reranking([*local_scorers(), EMBEDDING], EMBEDDING, {"embedding": 0.7, "retriever": 0.3})
    listed = [(info.name, weight) for info, weight in fused.infos]
    assert listed == [("embedding", 0.7), ("retriever", 0.3), ("bm25", 0.0), ("keyword", 0.0)]


def test_a_default_of_an_unknown_scorer_is_refused():
    with pytest.raises(InvalidRequest, match="'magic' is not known: use one of 'bm25'"):
        Reranking(local_scorers(), EMBEDDING, {"magic": 1.0})


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
        ("q", [], by("magic"), "'magic' is not known: use one of 'bm25', 'keyword', 'retriever', 'embedding'"),
        (" ", [], RerankPolicy(), "query is empty"),
        ("q", [chunk("a")] * 1001, RerankPolicy(), "1001 entries, at most 1000"),
        ("q", [], RerankPolicy(top_k=-1), "top_k is -1"),
        ("q", [], RerankPolicy(max_per_source=-1), "max_per_source is -1"),
        ("q", [], RerankPolicy(diversity=1.5), r"diversity is 1.5: it must be in \[0, 1\]"),
        ("q", [], RerankPolicy(diversity=math.nan), "diversity is nan"),
        ("q", [], RerankPolicy(fusion=None), "use one of SCORE_FUSION_RECIPROCAL_RANK, SCORE_FUSION_WEIGHTED"),
        ("q", [], RerankPolicy((WeightedScorer("bm25", 0.0),)), r"scorers\[0\].weight is 0.0: it must be above 0"),
        ("q", [], RerankPolicy((WeightedScorer("bm25", math.nan),)), r"scorers\[0\].weight is nan"),
        ("q", [], RerankPolicy((WeightedScorer("bm25"),) * 2), "'bm25' more than once"),
        ("q", [], RerankPolicy((WeightedScorer("bm25"),) * 9), "9 entries, at most 8"),
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


@given(st.text(alphabet="abc", min_size=1, max_size=5), chunks, fusions)
def test_a_fused_score_is_in_its_range_and_best_first(query, given_chunks, policy):
    ranked = rerank(query, given_chunks, policy)
    highest = {Fusion.WEIGHTED: 1.0, Fusion.RECIPROCAL_RANK: 1 / 61}[policy.fusion]
    scores = [one.score for one in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= highest + 1e-9 for score in scores)
    assert {one.score_kind for one in ranked} <= {policy.fusion.value}
    assert len(ranked) == len(given_chunks)


@given(chunks, st.integers(1, 3), st.floats(0, 1), st.integers(0, 5))
def test_each_source_keeps_its_best_chunks(given_chunks, max_per_source, diversity, top_k):
    kept = rerank("a b", given_chunks, by("retriever", max_per_source=max_per_source))
    for source in "stu":
        every = sorted((one.score for one in given_chunks if one.source == source), reverse=True)
        assert [one.score for one in kept if one.source == source] == every[:max_per_source]
    spread = rerank("a b", given_chunks, by("retriever", max_per_source=max_per_source, diversity=diversity))
    assert sorted(one.score for one in spread) == sorted(one.score for one in kept)
    cut = by("retriever", max_per_source=max_per_source, diversity=diversity, top_k=top_k)
    assert rerank("a b", given_chunks, cut) == (spread[:top_k] if top_k else spread)


def test_scores_of_several_scorers_are_scaled_and_weighted():
    given_chunks = [chunk("red", score=10.0), chunk("blue", score=0.0), chunk("red blue", score=5.0)]
    scorers = (WeightedScorer("retriever", 3.0), WeightedScorer("keyword", 1.0))
    ranked = rerank("red blue", given_chunks, RerankPolicy(scorers))
    assert {one.content: one.score for one in ranked} == {"red": 0.75, "red blue": 0.625, "blue": 0.0}
    first = json.loads(ranked[0].metadata_json)
    assert first["rerank_scores"] == {"retriever": 10.0, "keyword": 0.5}


def test_ranks_of_several_scorers_are_weighted():
    given_chunks = [chunk("red", score=2.0), chunk("red blue", score=1.0)]
    scorers = (WeightedScorer("retriever", 3.0), WeightedScorer("keyword", 1.0))
    ranked = rerank("red blue", given_chunks, RerankPolicy(scorers, fusion=Fusion.RECIPROCAL_RANK))
    scores = [one.score for one in ranked]
    assert scores == [pytest.approx(0.75 / 61 + 0.25 / 62), pytest.approx(0.75 / 62 + 0.25 / 61)]


def test_embeddings_find_chunks_of_other_words():
    ranked = rerank("avocado", [chunk("banana"), chunk("apple"), chunk(" ")], by("embedding"))
    assert [one.content for one in ranked] == ["apple", "banana", " "]
    assert ranked[0].score == pytest.approx(1.0)


def test_a_blank_chunk_has_the_lowest_score_and_says_why():
    (blank,) = rerank("a", [chunk("  ")], by("embedding"))
    assert blank.score == -1.0
    assert json.loads(blank.metadata_json)["rerank_scores"] == {"embedding": None}


def test_diversity_prefers_another_text_to_a_repeated_one():
    given_chunks = [chunk("apple", score=3.0), chunk("apples", score=2.9), chunk("banana", score=2.0)]
    plain = rerank("a", given_chunks, by("retriever", top_k=2))
    spread = rerank("a", given_chunks, by("retriever", top_k=2, diversity=0.5))
    assert [one.content for one in plain] == ["apple", "apples"]
    assert [one.content for one in spread] == ["apple", "banana"]
