"""Verification over a real database: what is lost is found, and what changes meanwhile is no damage."""

from __future__ import annotations

from contextlib import closing

import pytest
import sqlalchemy as sa

from services.context.core.document import Document
from tests.support.context_app import Context, key

LONG = "apple avocado almond. " * 12


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        yield opened


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("DELETE FROM context_chunks WHERE document_id = :a AND position = 0", "chunk 0: it is missing"),
        ("DELETE FROM context_chunks WHERE id = :second", "chunk 1: it is missing"),
        ("DELETE FROM context_chunks WHERE id = :last", f"to {len(LONG)} are in no chunk"),
        ("DELETE FROM context_embeddings WHERE chunk_id = :second", "chunk 1: it has no embedding and does not wait"),
        ("UPDATE context_chunks SET content_digest = 1 WHERE id = :second", "chunk 1: its digest is not that of"),
        ("UPDATE context_documents SET digest = 'other' WHERE source = 'a'", "'a': its digest is not that of"),
        ("DELETE FROM context_documents WHERE source = 'b'", "chunks without their document: 1"),
    ],
)
async def test_what_is_lost_is_found(context, statement, difference, is_indexed):
    await context.ingest(Document("a", LONG), Document("b", "banana"))
    await context.embed_all()
    if is_indexed:
        await context.find("apple")
    await damage(context, statement)
    report = await context.verification.verify(key("docs"), 0)
    assert report.difference_count == len(report.differences)
    assert any(difference in one for one in report.differences), report.differences


async def test_a_chunk_that_waits_for_nothing_is_found(context):
    await context.ingest(Document("a", LONG))
    assert (await context.verification.verify(key("docs"), 0)).differences == []
    await damage(context, "DELETE FROM context_unembedded WHERE chunk_id = :second")
    (found,) = (await context.verification.verify(key("docs"), 0)).differences
    assert found.startswith("document 'a', chunk 1: it has no embedding and does not wait for one")


async def test_a_collection_without_a_model_needs_no_embeddings(context):
    await context.library.create_collection(key("docs"), "", "")
    await context.ingest(Document("a", LONG))
    assert (await context.verification.verify(key("docs"), 0)).differences == []


async def test_a_search_goes_on_where_a_document_is_lost(context):
    await context.ingest(Document("a", "apple"), Document("b", "banana"))
    await damage(context, "DELETE FROM context_documents WHERE source = 'b'")
    assert await context.sources("apple banana") == ["a"]


async def test_an_embedding_is_compared_with_that_of_the_beginning_that_fits(context):
    context.embedder.max_chars = 16
    await context.ingest(Document("a", "apple avocado banana blueberry"))
    await context.embed_all()
    report = await context.verification.verify(key("docs"), 0)
    assert (report.embedding_count, report.differences) == (1, [])


async def damage(context, statement):
    """Run a statement, which may name document a as :a, and its second and last chunk as :second and :last."""

    def run(db):
        found = sa.text(
            "SELECT document_id, id FROM context_chunks WHERE document_id = "
            "(SELECT id FROM context_documents WHERE source = 'a') ORDER BY position"
        )
        rows = db.execute(found).all()
        ids = {"a": rows[0].document_id, "second": rows[min(1, len(rows) - 1)].id, "last": rows[-1].id}
        db.execute(sa.text(statement), {name: value for name, value in ids.items() if f":{name}" in statement})

    await context.access.write(run)


async def replace(context):
    await context.ingest(Document("a", "avocado " * 30), Document("c", "cherry " * 30))


async def remove(context):
    await context.library.delete_documents(key("docs"), ["a", "c"])


async def add(context):
    await context.ingest(Document("new", "nut " * 30))


async def embed_anew(context):
    await context.embedding.change_model(key("docs"), "last")
    await context.embed_all()


async def make_again(context):
    await context.library.delete_collection(key("docs"))
    await context.ingest(Document("a", "avocado " * 30), Document("c", "cherry " * 30))


@pytest.mark.parametrize("change", [replace, remove, add, embed_anew, make_again])
@pytest.mark.parametrize("moment", ["before the documents are listed", "after the first document was read"])
async def test_a_change_meanwhile_is_no_damage(context, change, moment):
    await context.ingest(*(Document(source, f"{source}pple {source}vocado " * 20) for source in "abcd"))
    await context.embed_all()
    read_documents = context.chunks.read_documents

    async def read_and_change(collection):
        if moment.startswith("before"):
            await change(context)
        is_first = moment.startswith("after")
        async for document in read_documents(collection):
            yield document
            if is_first:
                await change(context)
            is_first = False

    context.chunks.read_documents = read_and_change
    assert (await context.verification.verify(key("docs"), 1000)).differences == []
    context.chunks.read_documents = read_documents
    assert (await context.verification.verify(key("docs"), 1000)).differences == []
