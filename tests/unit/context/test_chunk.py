from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import FENCED_HEADING, Chunk, ChunkLocation, lay_out
from pagantic_common.domain.errors import InvalidRequest
from services.context.app.retrieval import CHUNK_OVERHEAD_BYTES, within_reply
from services.context.core.document import Document, IngestBounds, check_collection_name, check_documents
from services.context.core.outline import Outline

GROWS = '{"a":[' + "1e9," * 3000 + "1]}"  # 12 KiB, of which a reranker would make 36
BOUNDS = IngestBounds(max_documents=2, max_document_chars=10)


@given(st.lists(st.text(max_size=50), max_size=8), st.integers(1, 10_000))
def test_a_reply_has_the_first_chunks_that_fit_and_at_least_one(contents, max_bytes):
    chunks = [Chunk(str(at), content, "s") for at, content in enumerate(contents)]
    kept = within_reply(chunks, max_bytes)
    assert kept == chunks[: len(kept)]
    assert len(kept) >= min(1, len(chunks))
    assert len(kept) <= 1 or sum(len(one.content.encode()) + CHUNK_OVERHEAD_BYTES for one in kept) <= max_bytes
    assert within_reply(chunks) == chunks


def test_long_sources_and_headings_count_for_a_reply():
    chunk = Chunk("0", "", "s" * 2000, location=ChunkLocation(0, 1, 0, "h" * 2000))
    assert within_reply([chunk] * 3, 2 * (4000 + CHUNK_OVERHEAD_BYTES)) == [chunk] * 2


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
        ([Document("a", "x", "NaN")], "not JSON"),
        ([Document("a", "x", '{"a":1e999}')], r"documents\[0\].metadata_json"),
        ([Document("a", "x", r'{"a":"\ud800"}')], r"documents\[0\].metadata_json"),
        ([Document("a", "x", '{"a":"' + "x" * 20_000 + '"}')], r"documents\[0\].metadata_json"),
        ([Document("a", "x", GROWS)], r"documents\[0\].metadata_json"),
    ],
)
def test_bad_documents_are_refused_with_their_place(documents, problem):
    with pytest.raises(InvalidRequest, match=problem):
        check_documents(documents, BOUNDS)


def test_digest_tells_content_metadata_and_outline_apart():
    paged = Document("s", "ba", "", Outline((0,)))
    known = (Document("s", "b", "a"), Document("s", "ba", ""), Document("s", "", "ba"), paged)
    assert len({document.digest for document in known}) == 4
    assert Document("s", "b").digest == Document("t", "b").digest
