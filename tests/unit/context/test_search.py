"""The pure search: scores against their formulas, and indexes that grow against ones that were made at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.ranking import (
    Fusion,
    best_positions,
    diversify,
    fuse_fractions,
    fuse_ranks,
    fuse_scores,
    smooth,
)
from pagantic_common.domain.text.scoring import K1, B, split_terms
from services.context.core.document import CollectionOptions
from services.context.core.policy import RetrievalPolicy, Retriever
from services.context.core.search import collection_index, vector_index
from services.context.core.search.collection_index import (
    CollectionIndex,
    FilterStopped,
    IndexChanges,
    IndexedChunk,
    IndexedDocument,
)
from services.context.core.search.lexical_index import EMPTY
from services.context.core.search.metadata_filter import compile_filter, is_selected
from services.context.core.search.terms import TermCounts, content_digest, count_terms, query_term_ids
from services.context.core.search.vector_index import NO_VECTOR, NO_VECTORS
from services.context.core.searching import Query, find_best
from tests.support.examples import examples

OPTIONS = CollectionOptions("m", "none")
texts = st.lists(st.text(alphabet="abcd ", max_size=14), max_size=10)
queries = st.text(alphabet="abcde ", max_size=8)


def naive_bm25(query, corpus):
    """Score by the textbook's formula, one text and term after the other."""
    split = [split_terms(text) for text in corpus]
    mean = sum(map(len, split)) / len(split) if any(split) else 1.0
    scores = []
    for terms in split:
        score = 0.0
        for term in set(split_terms(query)):
            frequency = terms.count(term)
            having = sum(term in other for other in split)
            rarity = math.log(1 + (len(split) - having + 0.5) / (having + 0.5))
            score += rarity * frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * len(terms) / mean))
        scores.append(score)
    return scores


def lexical(*batches):
    index, size = EMPTY, 0
    for batch in batches:
        size += len(batch)
        index = index.extend([count_terms(text, "none") for text in batch], np.ones(size, dtype=bool))
    return index


@given(st.lists(texts, max_size=5), queries)
def test_bm25_of_an_index_that_grew_is_the_formula(batches, query):
    corpus = [text for batch in batches for text in batch]
    scores = lexical(*batches).bm25(query_term_ids(query, "none"))
    assert scores.tolist() == pytest.approx(naive_bm25(query, corpus), rel=1e-9, abs=1e-12)


@given(st.lists(texts, max_size=4), queries, st.data())
def test_removed_texts_count_for_nothing(batches, query, data):
    corpus = [text for batch in batches for text in batch]
    alive = np.array(data.draw(st.lists(st.booleans(), min_size=len(corpus), max_size=len(corpus))), dtype=bool)
    index = lexical(*batches).extend([], alive)
    left = [text for text, is_alive in zip(corpus, alive, strict=True) if is_alive]
    ids = query_term_ids(query, "none")
    assert index.bm25(ids)[alive].tolist() == pytest.approx(naive_bm25(query, left), rel=1e-9, abs=1e-12)
    assert not index.bm25(ids)[~alive].any()
    assert not index.coverage(ids)[~alive].any()


@given(texts, queries)
def test_coverage_is_the_fraction_of_query_terms(corpus, query):
    wanted = set(split_terms(query))
    expected = [len(wanted & set(split_terms(text))) / max(1, len(wanted)) for text in corpus]
    assert lexical(corpus).coverage(query_term_ids(query, "none")).tolist() == pytest.approx(expected)


def test_an_index_of_many_additions_has_few_segments():
    index = EMPTY
    for size in range(1, 513):
        index = index.extend([count_terms(f"word{size} common", "none")], np.ones(size, dtype=bool))
    assert index.segment_count <= 10
    assert np.count_nonzero(index.bm25(query_term_ids("common", "none"))) == 512
    assert np.flatnonzero(index.bm25(query_term_ids("word77", "none"))).tolist() == [76]


@given(st.text(max_size=60))
def test_terms_survive_their_encoding(text):
    terms = count_terms(text, "english")
    again = TermCounts.from_bytes(terms.to_bytes())
    assert (again.ids.tolist(), again.counts.tolist()) == (terms.ids.tolist(), terms.counts.tolist())
    assert terms.length == len(split_terms(text))
    assert terms.ids.tolist() == sorted(terms.ids.tolist())


def test_word_endings_are_those_of_the_language():
    assert query_term_ids("Running runs", "english").tolist() == query_term_ids("run", "english").tolist()
    assert len(query_term_ids("Running runs", "none")) == 2
    assert query_term_ids("Häuser", "german").tolist() == query_term_ids("Haus", "german").tolist()
    with pytest.raises(ValueError, match="buffer size"):
        TermCounts.from_bytes(b"123")


@given(st.lists(st.floats(-2, 2, width=16), max_size=200), st.floats(-2, 1), st.integers(0, 12))
def test_the_best_positions_are_those_of_a_full_sort(values, above, limit):
    scores = np.array(values, dtype=np.float64)
    expected = [at for at in sorted(range(len(values)), key=lambda at: (-values[at], at)) if values[at] > above][:limit]
    assert best_positions(scores, above, limit).tolist() == expected


def test_reciprocal_ranks_are_summed():
    fused = fuse_ranks([(np.array([7, 3]), 1.0), (np.array([3]), 0.5)])
    assert fused == {7: pytest.approx(1 / 61), 3: pytest.approx(1 / 62 + 0.5 / 61)}


def test_scores_are_scaled_weighted_and_summed():
    scores = np.array([0.0, 2.0, 4.0, 3.0])
    fused = fuse_scores([(np.array([2, 3, 1]), scores, 0.25), (np.array([1]), np.array([0.0, 9.0, 0.0, 0.0]), 0.75)])
    assert fused == {2: pytest.approx(0.25), 3: pytest.approx(0.125), 1: pytest.approx(0.75)}
    assert fuse_scores([(np.array([], dtype=int), scores, 1.0)]) == {}
    widest = np.array([1.7e308, -1.7e308, 0.0])
    assert fuse_scores([(np.array([0, 2, 1]), widest, 1.0)]) == {0: 1.0, 2: 0.5, 1: 0.0}


def test_every_found_position_has_the_fractions_of_all_legs():
    words, near = np.array([0.0, 2.0, 4.0, 1.0]), np.array([0.5, -0.2, 0.1, -2.0])
    fused = fuse_fractions([(np.array([2]), words, 0.25), (np.array([0, 1]), near, 0.75)])
    assert fused == {0: pytest.approx(0.75), 1: pytest.approx(0.125), 2: pytest.approx(0.25 + 0.15)}
    nothing = np.array([], dtype=int)
    assert fuse_fractions([(nothing, words, 0.5), (nothing, near, 0.5)]) == {}
    assert fuse_fractions([(nothing, words * 0, 0.5), (np.array([3]), near * 0, 0.5)]) == {3: 0.0}


def test_texts_that_resemble_good_ones_are_drawn_up():
    one, other = [1.0, 0.0], [0.0, 1.0]
    vectors = np.array([one] * 6 + [other] * 6, dtype=np.float32)
    scores = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.2] + [0.5] * 6)
    assert smooth(vectors, scores, 0.0).tolist() == scores.tolist()
    smoothed = smooth(vectors, scores, 0.5)
    assert smoothed[5] == pytest.approx(0.5 * 0.2 + 0.5 * np.mean(scores[:6]))  # the mean of equals stays as it is
    assert smoothed[6:] == pytest.approx([0.5] * 6)
    assert smooth(np.zeros((2, 1), dtype=np.float32), np.array([3.0, 1.0]), 0.9) == pytest.approx([3.0, 1.0])
    assert smooth(np.zeros((0, 1), dtype=np.float32), np.array([]), 0.9).tolist() == []


@given(st.integers(1, 30), st.floats(0, 0.95), st.integers(0, 1000))
def test_smoothed_scores_stay_between_the_lowest_and_the_highest(count, weight, seed):
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((count, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = random.normal(size=count)
    smoothed = smooth(vectors, scores, weight)
    assert min(scores) - 1e-9 <= min(smoothed) <= max(smoothed) <= max(scores) + 1e-9


@given(st.integers(0, 6), st.floats(0, 1), st.integers(0, 8), st.integers(0, 1000))
def test_a_diverse_selection_has_no_repetition_and_begins_with_the_best(count, diversity, limit, seed):
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((count, 3)).astype(np.float32)
    scores = random.random(count).tolist()
    chosen = diversify(vectors, scores, diversity, limit)
    assert len(chosen) == len(set(chosen)) == min(limit, count)
    if chosen and diversity < 1:
        assert scores[chosen[0]] == max(scores)
    if diversity == 0:
        assert chosen == sorted(range(count), key=lambda at: (-scores[at], at))[:limit]


def test_vectors_that_come_later_are_seen_by_later_indexes_only():
    first = NO_VECTORS.extend(3, [0], np.array([[1.0, 0.0]], dtype=np.float32))
    second = first.extend(3, [2], np.array([[0.0, 1.0]], dtype=np.float32))
    query = np.array([0.0, 1.0], dtype=np.float32)
    assert first.cosine(query).tolist() == [0.0, NO_VECTOR, NO_VECTOR]
    assert second.cosine(query).tolist() == [0.0, NO_VECTOR, 1.0]
    assert second.cosine(np.zeros(5, dtype=np.float32)).tolist() == [NO_VECTOR] * 3
    assert second.cosine(query, np.array([False, False, True])).tolist()[2] == 1.0


@given(st.integers(1, 600), st.integers(1, 600), st.integers(0, 40))
def test_positions_without_vectors_may_follow_those_with_them(first, more, few):
    vectors = np.tile(np.float32([[1, 0]]), (first, 1))
    index = NO_VECTORS.extend(first, range(first), vectors).extend(first + more, [], vectors[:0])
    query = np.array([1, 0], dtype=np.float32)
    expected = [1.0] * first + [NO_VECTOR] * more
    assert index.cosine(query).tolist() == expected
    allowed = np.arange(first + more) < few
    assert index.cosine(query, allowed)[allowed].tolist() == expected[:few]
    places = np.array([0, first + more - 1])
    assert index.vectors_at(places).tolist() == [[1, 0], [0, 0]]


# ---- collections


def chunk_of(number, text):
    return IndexedChunk(number, number, content_digest(text), count_terms(text, "none"))


def changes(numbers_and_texts, *, removed=(), revision=1, vectors=None):
    embedded = [number for number, _ in numbers_and_texts]
    if vectors is None:
        vectors, embedded = np.zeros((0, 0), dtype=np.float32), []
    return IndexChanges(
        (1, revision),
        OPTIONS,
        documents=[
            IndexedDocument(number, f"s{number}".encode(), b'{"n": %d}' % number) for number, _ in numbers_and_texts
        ],
        chunks=[chunk_of(number, text) for number, text in numbers_and_texts],
        removed_document_ids=list(removed),
        embedded_ids=embedded,
        vectors=vectors,
    )


def search(index, query, vector=None, limit=10, **policy):
    return search_for(index, [Query(query_term_ids(query, "none"), vector)], limit, **policy)


def search_for(index, searched, limit, **policy):
    policy = RetrievalPolicy("docs", **policy)
    return find_best(index, searched, policy, limit, index.allowed(policy.compiled_filter()))


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(st.lists(st.text(alphabet="abc ", min_size=1, max_size=9), max_size=5), st.integers(0, 20))),
    queries.filter(str.strip),
    st.sampled_from(list(Fusion)),
)
def test_an_index_that_followed_changes_finds_what_a_new_one_finds(steps, query, fusion):
    grown, live, number = CollectionIndex(OPTIONS), {}, 0
    random = np.random.default_rng(7)
    vector_of = random.standard_normal((200, 4)).astype(np.float32)
    vector_of /= np.linalg.norm(vector_of, axis=1, keepdims=True)
    for revision, (added, victim) in enumerate(steps, 1):
        new = []
        for text in added:
            number += 1
            new.append((number, text))
        removed = [victim] if victim in live else []
        vectors = vector_of[[one for one, _ in new]] if new else None
        grown = grown.apply(changes(new, removed=removed, revision=revision, vectors=vectors))
        live = {one: text for one, text in live.items() if one not in removed} | dict(new)
    rows = vector_of[list(live)] if live else None
    fresh = CollectionIndex(OPTIONS).apply(changes(list(live.items()), vectors=rows))
    for retriever in Retriever:
        policy = {"retriever": retriever, "fusion": fusion}
        found, expected = (search(index, query, vector_of[0], **policy) for index in (grown, fresh))
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-6)
        assert {one.chunk_id for one in found} <= set(live)
        texts_found = [live[one.chunk_id] for one in found]
        assert len(texts_found) == len(set(texts_found))


corpora = st.lists(st.text(alphabet="abc ", min_size=1, max_size=9), unique=True, max_size=8)
asked = st.lists(queries.filter(str.strip), min_size=2, max_size=4)


def corpus_index(corpus):
    return CollectionIndex(OPTIONS).apply(changes(list(enumerate(corpus))))


def search_all(index, texts, **policy):
    searched = [Query(query_term_ids(text, "none")) for text in texts]
    return search_for(index, searched, 10, **policy)


@given(corpora, asked, st.sampled_from([Retriever.BM25, Retriever.KEYWORD]))
def test_several_queries_are_fused_by_the_ranks_that_each_gives(corpus, texts, retriever):
    index, expected = corpus_index(corpus), {}
    for text in texts:
        for rank, hit in enumerate(search(index, text, retriever=retriever), 1):
            expected[hit.chunk_id] = expected.get(hit.chunk_id, 0.0) + 1 / (60 + rank)
    found = search_all(index, texts, retriever=retriever)
    assert {hit.chunk_id: hit.score for hit in found} == pytest.approx(expected)
    scores = [hit.score for hit in found]
    assert scores == sorted(scores, reverse=True)


@given(corpora, asked)
def test_what_one_query_finds_is_found_by_it_among_others(corpus, texts):
    index = corpus_index(corpus)
    alone = {hit.chunk_id for text in texts for hit in search(index, text)}
    assert {hit.chunk_id for hit in search_all(index, texts)} == alone


def test_a_least_score_is_one_of_each_query_and_not_of_their_ranks():
    index = corpus_index(["a b", "a c", "d"])
    found = search_all(index, ["a b", "d"], retriever=Retriever.KEYWORD, min_score=1.0)
    assert [(hit.chunk_id, hit.score) for hit in found] == [(0, pytest.approx(1 / 61)), (2, pytest.approx(1 / 61))]


@given(st.integers(0, 999))
def test_recall_under_a_narrow_filter_is_whole(wanted):
    found = search(NARROW, "word", retriever=Retriever.BM25, limit=1, filter=f"metadata.n == {wanted}")
    near = search(
        NARROW,
        "word",
        np.array([1, 0], dtype=np.float32),
        1,
        retriever=Retriever.VECTOR,
        filter=f"metadata.n == {wanted}",
    )
    assert [one.chunk_id for one in found] == [one.chunk_id for one in near] == [wanted]


NARROW = CollectionIndex(OPTIONS).apply(
    changes([(number, f"word {number}") for number in range(1000)], vectors=np.tile(np.float32([[1, 0]]), (1000, 1)))
)


def test_a_filter_that_was_stopped_goes_on_where_it_was(monkeypatch):
    seen = []

    def count(expression, source, metadata_json):
        seen.append(source)
        return is_selected(expression, source, metadata_json)

    monkeypatch.setattr(collection_index, "is_selected", count)
    index = CollectionIndex(OPTIONS).apply(changes([(number, f"word {number}") for number in range(7)]))
    expression = compile_filter("filter", "metadata.n >= 3.0")
    for done in (1, 2):
        with pytest.raises(FilterStopped, match=f"{done} of 7") as stopped:
            index.allowed(expression, lambda: True)
        assert (stopped.value.done, stopped.value.total) == (done, 7)
        assert not index.has_evaluated(expression)
    expected = [number >= 3 for number in range(7)]
    assert index.allowed(expression).tolist() == expected
    assert index.has_evaluated(expression)
    assert index.allowed(expression, lambda: True).tolist() == expected
    assert seen == [f"s{number}" for number in range(7)], "each once"
    grown = index.apply(changes([(7, "word 7")], revision=2))
    assert not grown.has_evaluated(expression)
    assert grown.allowed(expression, lambda: True).tolist() == [*expected, True], "the last document is no stop"
    assert index.has_evaluated(None)


@pytest.mark.parametrize(
    ("expression", "metadata", "expected"),
    [
        ("metadata.year >= 2020", '{"year": 2020}', True),
        ("metadata.year >= 2020", '{"year": "2020"}', False),
        ("metadata.year >= 2020", "", False),
        ('"a" in metadata.tags && size(metadata.tags) == 2', '{"tags": ["a", "b"]}', True),
        ("has(metadata.draft)", "{}", False),
        ("!has(metadata.draft)", "{}", True),
        ('source.startsWith("docs/")', "", True),
        ("metadata.year", "{}", False),
        ("metadata.all(a, metadata.all(b, metadata.all(c, true)))", '{"a": 1, "b": 2}', True),
    ],
)
def test_a_filter_selects_documents_for_which_it_is_true(expression, metadata, expected):
    assert is_selected(compile_filter("filter", expression), "docs/a.md", metadata) is expected


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("source", "a text"),
        ("'a'", "a text"),
        ("1 + 1", "a number"),
        ("null", "null"),
        ("metadata", "a map"),
        ("metadata.year", "a number"),
        ("[1]", "a list"),
    ],
)
def test_a_filter_that_is_no_condition_is_refused(expression, kind):
    with pytest.raises(InvalidRequest) as refused:
        is_selected(compile_filter("filter", expression), "docs/a.md", '{"year": 1}')
    assert f"policy.filter {expression!r} gives {kind} for document 'docs/a.md'" in str(refused.value)


def test_a_filter_that_is_no_expression_is_refused():
    with pytest.raises(InvalidRequest, match=r"filter: .*does not compile"):
        compile_filter("filter", "a b")


def _clustered(random, count):
    """Return unit vectors around a few centers, as embeddings of texts on a few subjects are."""
    centers = random.standard_normal((20, 256))
    vectors = centers[random.integers(0, 20, count)] + random.standard_normal((count, 256))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_the_nearest_by_signs_are_the_nearest(monkeypatch):
    monkeypatch.setattr(vector_index, "EXACT_ROWS", 1000)
    monkeypatch.setattr(vector_index, "RESCORED", 400)
    random = np.random.default_rng(1)
    vectors = _clustered(random, 3000)
    index = NO_VECTORS.extend(1500, range(1500), vectors[:1500]).extend(3000, range(1500, 2900), vectors[1500:2900])
    found = []
    for query in _clustered(random, 40):
        exact = best_positions((vectors[:2900] @ query).astype(np.float64), NO_VECTOR, 10)
        scores = index.cosine(query)
        assert np.count_nonzero(scores > NO_VECTOR) == 400
        assert scores[scores > NO_VECTOR] == pytest.approx((vectors @ query)[scores > NO_VECTOR], abs=1e-6)
        found.append(len(set(best_positions(scores, NO_VECTOR, 10)) & set(exact)))
    assert np.mean(found) > 8
    allowed = np.arange(3000) % 7 == 0
    assert set(np.flatnonzero(index.cosine(query, allowed) > NO_VECTOR)) <= set(np.flatnonzero(allowed[:2900]))
