from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.context.core.chunking import split_spans, split_text

chunk_chars = st.integers(8, 60)


@given(st.text(alphabet="ab. \n!é", max_size=400), chunk_chars, st.data())
def test_no_text_is_lost_and_chunks_keep_their_bounds(text, limit, data):
    overlap = data.draw(st.integers(0, limit // 4))
    spans = split_spans(text, limit, overlap)
    assert [start for start, _ in spans[:1]] == ([0] if text else [])
    assert spans[-1][1] == len(text) if text else spans == []
    for (start, end), (next_start, next_end) in pairwise(spans):
        assert next_start <= end < next_end
        assert end - next_start <= overlap
        assert start < next_start
    assert all(0 < end - start <= limit for start, end in spans)


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=8), max_size=60), chunk_chars)
def test_every_word_that_fits_is_whole_in_some_chunk(words, limit):
    words = [word for word in words if len(word) <= limit // 2]
    chunks = split_text(" ".join(words), limit, 0)
    assert " ".join(chunks).split() == words


def test_paragraphs_stay_whole_when_they_fit():
    first, second = "One. " * 12, "Two. " * 12
    assert split_text(f"{first}\n\n{second}", 80, 0) == [first.strip(), second.strip()]


def test_sentences_are_cut_at_their_end():
    text = "The first sentence is here. The second one is a little longer than that."
    assert split_text(text, 40, 0)[0] == "The first sentence is here."


def test_overlap_begins_with_a_whole_word():
    chunks = split_text(" ".join(f"word{number}" for number in range(100)), 80, 20)
    assert all(chunk.startswith("word") for chunk in chunks)
    assert chunks[0].split()[-1] in chunks[1].split()


def test_too_much_overlap_is_refused():
    with pytest.raises(ValueError, match="quarter"):
        split_spans("abc", 40, 11)
