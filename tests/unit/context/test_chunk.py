from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import FENCED_HEADING, Chunk, lay_out
from pagantic_common.domain.errors import InvalidRequest
from services.context.core.chunk import select_chunks
from services.context.core.document import Document, IngestBounds, check_collection_name, check_documents

chunks = st.lists(
    st.builds(
        Chunk,
        id=st.sampled_from("12"),
        content=st.sampled_from(["x", "y", "z"]),
        source=st.sampled_from("st"),
        score=st.sampled_from([0.0, 0.5, 1.0]),
    ),
    max_size=8,
)
BOUNDS = IngestBounds(max_documents=2, max_document_chars=10)


@given(chunks, st.none() | st.sampled_from([0.5, 2.0]), st.integers(-1, 4))
def test_selection_is_sorted_distinct_and_bounded(found, min_score, max_chunks):
    kept = select_chunks(found, min_score, max_chunks)
    assert [chunk.score for chunk in kept] == sorted((chunk.score for chunk in kept), reverse=True)
    assert len({chunk.content for chunk in kept}) == len(kept) == len({(chunk.source, chunk.id) for chunk in kept})
    assert min_score is None or all(chunk.score >= min_score for chunk in kept)
    assert max_chunks <= 0 or len(kept) <= max_chunks
    if found and min_score is None:
        assert kept[0].score == max(chunk.score for chunk in found)


def test_duplicate_keeps_its_best_score_and_ties_their_order():
    a, b, c = Chunk("1", "x", "s", 0.5), Chunk("2", "x", "s", 0.9), Chunk("3", "y", "s", 0.5)
    assert select_chunks([a, b, c], None, 0) == [b, c]
    tied = [Chunk("1", "p", "s", 1.0), Chunk("2", "q", "s", 1.0)]
    assert select_chunks(tied, None, 0) == tied


def test_message_has_heading_empty_line_and_numbered_chunks():
    chunks = [Chunk("0", "first", "a.md"), Chunk("1", "```second", "b.md")]
    lines = "[1] (a.md): first\n[2] (b.md): ```second"
    assert lay_out(chunks, is_fenced=False) == f"Relevant context:\n\n{lines}"
    assert lay_out(chunks, is_fenced=True) == f"{FENCED_HEADING}\n\n````\n{lines}\n````"


@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b", "x" * 65])
def test_bad_collection_name_is_refused(name):
    with pytest.raises(InvalidRequest, match="collection"):
        check_collection_name("collection", name)


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([], "0 entries: send 1 to 2"),
        ([Document("a", "x"), Document("b", "x"), Document("c", "x")], "3 entries"),
        ([Document("a", "x"), Document("a", "y")], r"documents\[1\].source 'a' is given twice"),
        ([Document("", "x")], r"documents\[0\].source must be"),
        ([Document("a\n[1] (b)", "x")], "printable"),
        ([Document("a", " \n")], "content is empty"),
        ([Document("a", "x" * 11)], "11 characters, at most 10"),
        ([Document("a", "x", "[]")], "not a JSON object"),
        ([Document("a", "x", "{")], "not JSON"),
    ],
)
def test_bad_documents_are_refused_with_their_place(documents, problem):
    with pytest.raises(InvalidRequest, match=problem):
        check_documents(documents, BOUNDS)


def test_digest_tells_content_and_metadata_apart():
    digests = {Document("s", "b", "a").digest, Document("s", "ba", "").digest, Document("s", "", "ba").digest}
    assert len(digests) == 3
    assert Document("s", "b").digest == Document("t", "b").digest
