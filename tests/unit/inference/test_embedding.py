import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pagantic_common.domain.errors import ErrorCode, Internal
from services.inference.core.embedding import TextQueue, unit_vectors

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def texts_of(sizes):
    return [[0] * size for size in sizes]


@given(st.lists(SIZES, max_size=5), st.integers(1, 20), st.integers(1, 5))
def test_every_text_is_taken_once_in_batches_that_fit(requests, max_tokens, max_texts):
    queue = TextQueue(max_tokens=max_tokens, max_texts=max_texts)
    numbered = [(queue.add(texts_of(sizes)), sizes) for sizes in requests]
    wanted = {(number, index): size for number, sizes in numbered for index, size in enumerate(sizes)}
    assert len(queue) == len(wanted)
    taken = {}
    while batch := queue.take():
        assert len(batch) <= max_texts
        assert len(batch) == 1 or sum(len(text.tokens) for text in batch) <= max_tokens
        for text in batch:
            assert (text.request, text.index) not in taken
            taken[text.request, text.index] = len(text.tokens)
    assert taken == wanted
    assert len(queue) == 0


def test_a_short_request_does_not_wait_for_a_long_one():
    queue = TextQueue(max_tokens=10, max_texts=4)
    queue.add(texts_of([10] * 50))
    queue.take()
    short = queue.add(texts_of([3]))
    assert any(text.request == short for _ in range(2) for text in queue.take())


def test_new_requests_do_not_starve_an_old_one():
    queue = TextQueue(max_tokens=10, max_texts=4)
    old = queue.add(texts_of([10] * 4))
    batches = []
    while queue:
        queue.add(texts_of([10]))
        batches.append(queue.take())
        if not any(text.request == old for batch in batches[-2:] for text in batch):
            break
        if sum(text.request == old for batch in batches for text in batch) == 4:
            return
    pytest.fail("the old request was starved")


def test_requests_share_a_batch():
    queue = TextQueue(max_tokens=10, max_texts=8)
    numbers = [queue.add(texts_of([2])) for _ in range(4)]
    assert queue.waiting == 4
    assert [text.request for text in queue.take()] == numbers
    assert queue.waiting == 0


def test_what_is_removed_is_not_taken():
    queue = TextQueue(max_tokens=4, max_texts=8)
    gone, kept = queue.add(texts_of([4, 4])), queue.add(texts_of([4]))
    queue.remove(gone)
    assert [text.request for text in queue.take()] == [kept]
    assert queue.take() == []


@given(st.lists(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_vectors_get_the_length_1(rows):
    vectors = np.array(rows, dtype=np.float32)
    if (np.abs(vectors).max(axis=1) < 1e-30).any():
        return
    assert np.linalg.norm(unit_vectors(vectors), axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_a_vector_without_direction_is_the_engines_failure(bad):
    with pytest.raises(Internal) as failed:
        unit_vectors(np.array([[1, 0], [bad, 0]], dtype=np.float32))
    assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR
