from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.text.scoring import TextIndex, coverage_of, query_terms, split_terms

TEXTS = ["the cat sat", "the dog sat on the log", "a bird", "cat cat cat"]
texts = st.lists(st.text(alphabet="abc .", max_size=12), max_size=6)


def test_terms_are_words_compared_caselessly():
    assert split_terms("Straße, ÉCOLE e\u0301cole no_1") == ["strasse", "école", "école", "no_1"]
    assert query_terms("a B b A") == ["a", "b"]


def test_bm25_is_the_formula():
    score = TextIndex(TEXTS).bm25("dog")[1]
    mean = (3 + 6 + 2 + 3) / 4
    rarity = math.log(1 + (4 - 1 + 0.5) / (1 + 0.5))
    assert score == pytest.approx(rarity * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 6 / mean)))


def test_bm25_prefers_more_occurrences_and_rarer_terms():
    scores = TextIndex(TEXTS).bm25("cat")
    assert scores[3] > scores[0]
    assert set(scores) == {0, 3}
    both = TextIndex(["common rare", "common x", "common y"]).bm25("common rare")
    assert both[0] > both[1] == both[2]


def test_coverage_counts_query_terms_once():
    assert TextIndex(TEXTS).coverage("cat cat sat zebra") == {0: 2 / 3, 1: 1 / 3, 3: 1 / 3}
    assert coverage_of("cat bird zebra", TEXTS) == pytest.approx(2 / 3)
    assert coverage_of("?!", TEXTS) == 0


@given(st.text(alphabet="abc ?", max_size=8), texts)
def test_scores_are_positive_bounded_and_only_for_matching_texts(query, corpus):
    index = TextIndex(corpus)
    bm25, coverage = index.bm25(query), index.coverage(query)
    matching = {i for i, text in enumerate(corpus) if set(split_terms(text)) & set(query_terms(query))}
    assert set(bm25) == set(coverage) == matching
    assert all(score > 0 and math.isfinite(score) for score in bm25.values())
    assert all(0 < score <= 1 for score in coverage.values())
    assert 0 <= coverage_of(query, corpus) <= 1
