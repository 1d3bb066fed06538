"""The store of collections over a real database: what it keeps, and what searches find in it."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing

import pytest
import sqlalchemy as sa

from pagantic_common.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from services.context.adapters.store.collections import MAX_REMOVALS
from services.context.app.indexes import Indexes
from services.context.app.retrieval import Retrieval
from services.context.core.document import Document
from services.context.core.outline import Heading, Outline
from services.context.core.policy import Expansion, RetrievalPolicy, Retriever
from services.context.core.search.collection_index import CollectionIndex
from tests.support.context_app import Context, key


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        yield opened


async def test_ingest_adds_replaces_and_leaves_alone(context):
    first = await context.ingest(Document("a", "alpha"), Document("b", "beta"))
    assert (first.added, first.replaced, first.unchanged) == (2, 0, 0)
    second = await context.ingest(Document("a", "alpha"), Document("b", "new"), Document("c", "gamma"))
    assert (second.added, second.replaced, second.unchanged) == (1, 1, 1)
    assert (second.collection.document_count, second.collection.chunk_count) == (3, 3)


async def test_stored_documents_are_there_after_a_restart(database_url):
    with closing(Context(database_url)) as first:
        await first.ingest(Document("a", "alpha beta", '{"k": 1}'))
        await first.embed_all()
    with closing(Context(database_url)) as again:
        (chunk,) = await again.find("beta")
        assert (chunk.id, chunk.content, chunk.source, chunk.metadata_json) == ("0", "alpha beta", "a", '{"k": 1}')
        assert (chunk.location.start, chunk.location.end) == (0, 10)
        assert await again.sources("alpha", retriever=Retriever.VECTOR) == ["a"]


async def test_ingest_that_fails_stores_nothing(context):
    await context.ingest(Document("a", "alpha"))
    big = Document("big", "word " * 1000)
    with pytest.raises(PreconditionFailed, match="at most 50"):
        await context.ingest(Document("b", "beta"), big)
    with pytest.raises(PreconditionFailed):
        await context.ingest(big, name="fresh")
    assert [(one.name, one.document_count) for one in await context.library.list_collections("acme")] == [("docs", 1)]


async def test_collections_are_made_listed_and_removed(context):
    made = await context.library.create_collection(key("b"), None, "")
    await context.library.create_collection(key("a"), "", "german")
    assert (made.name, made.document_count, made.chunk_count, made.options.embedding_model) == ("b", 0, 0, "letters")
    listed = await context.library.list_collections("acme")
    assert [(one.name, one.options.embedding_model, one.options.language) for one in listed] == [
        ("a", "", "german"),
        ("b", "letters", "none"),
    ]
    with pytest.raises(Conflict, match="'a'"):
        await context.library.create_collection(key("a"), None, "")
    with pytest.raises(InvalidRequest, match="language 'klingon'"):
        await context.library.create_collection(key("c"), None, "klingon")
    await context.library.delete_collection(key("a"))
    with pytest.raises(NotFound, match="'a'"):
        await context.library.delete_collection(key("a"))


async def test_deleting_documents_counts_those_that_were_there(context):
    await context.ingest(Document("a", "alpha"), Document("b", "beta"))
    assert await context.library.delete_documents(key("docs"), ["a", "a", "zzz"]) == 1
    assert await context.sources("alpha") == []
    with pytest.raises(NotFound):
        await context.library.delete_documents(key("none"), ["a"])


async def test_concurrent_ingests_all_arrive(context):
    await asyncio.gather(*(context.ingest(Document(f"d{number}", "text")) for number in range(20)))
    assert (await context.library.list_collections("acme"))[0].document_count == 20


async def test_retrieval_sees_every_change(context):
    await context.ingest(Document("a", "red fox"), Document("b", "red red dog"), Document("c", "blue"))
    assert await context.sources("red") == ["b", "a"]
    assert await context.sources("red fox", retriever=Retriever.KEYWORD) == ["a", "b"]
    assert await context.sources("red fox", retriever=Retriever.KEYWORD, min_score=0.6) == ["a"]
    assert await context.sources("red", max_chunks=1) == ["b"]
    assert await context.sources("zebra") == []
    await context.ingest(Document("a", "zebra"))
    assert await context.sources("zebra") == ["a"]
    assert await context.sources("fox") == []
    await context.library.delete_collection(key("docs"))
    await context.ingest(Document("z", "zebra"))
    assert await context.sources("zebra") == ["z"]


async def test_an_index_that_followed_changes_is_the_one_that_is_read_whole(context):
    for number in range(12):
        await context.ingest(Document(f"d{number % 5}", f"word {number} and {'word ' * (number % 3)}"))
        await context.embed_all()
        if number % 4 == 3:
            await context.library.delete_documents(key("docs"), [f"d{number % 5}"])
        followed = {
            retriever: [
                (one.source, pytest.approx(one.score, abs=1e-12))
                for one in await context.find("word 7", retriever=retriever)
            ]
            for retriever in Retriever
        }
        fresh = Retrieval(context.chunks, Indexes(context.chunks, 1 << 20), context.embedder)
        for retriever, expected in followed.items():
            found = await fresh.retrieve("acme", "word 7", RetrievalPolicy("docs", retriever))
            assert [(one.source, one.score) for one in found.chunks] == expected


async def test_an_index_that_missed_forgotten_removals_is_read_whole(context, monkeypatch):
    monkeypatch.setattr("services.context.adapters.store.collections.MAX_REMOVALS", 4)
    await context.ingest(*(Document(f"d{number}", "word") for number in range(12)), Document("last", "word z"))
    assert len(await context.sources("word z")) == 2  # the twelve have one content
    for number in range(12):
        await context.library.delete_documents(key("docs"), [f"d{number}"])
    assert await context.sources("word") == ["last"]
    assert MAX_REMOVALS > 4


async def test_same_content_is_found_once(context):
    await context.ingest(Document("a", "same words"), Document("b", "same words"))
    found = await context.find("same")
    assert [(chunk.source, chunk.score_kind) for chunk in found] == [("a", "bm25")]


async def test_concurrent_searches_over_more_collections_than_indexes_agree(database_url):
    with closing(Context(database_url, max_index_bytes=2000)) as context:
        for number in range(4):
            await context.ingest(Document(f"s{number}", "word"), name=f"c{number}")
        found = await asyncio.gather(*(context.sources("word", name=f"c{number % 4}") for number in range(16)))
        assert found == [[f"s{number % 4}"] for number in range(16)]


async def test_tenants_share_names_and_nothing_else(context):
    await context.ingest(Document("a", "alpha"))
    await context.ingest(Document("b", "beta gamma"), tenant="beta")
    for tenant, source, word in (("acme", "a", "alpha"), ("beta", "b", "gamma")):
        assert [one.document_count for one in await context.library.list_collections(tenant)] == [1]
        assert await context.sources(word, tenant=tenant) == [source]
    assert await context.sources("gamma") == []
    assert await context.library.delete_documents(key("docs"), ["b"]) == 0
    await context.library.delete_collection(key("docs"))
    assert await context.sources("gamma", tenant="beta") == ["b"]


async def test_anothers_collection_is_as_unknown_as_none(context):
    await context.ingest(Document("a", "alpha"))
    for name in ("docs", "none"):
        for call in (
            context.library.delete_collection(key(name, "beta")),
            context.library.delete_documents(key(name, "beta"), ["a"]),
            context.embedding.change_model(key(name, "beta"), ""),
            context.verification.verify(key(name, "beta"), 0),
            context.find("alpha", name=name, tenant="beta"),
        ):
            with pytest.raises(NotFound, match=f"^no collection is named '{name}'$"):
                await call
    assert await context.library.list_collections("beta") == []


async def test_there_are_only_so_many_collections_of_each_tenant(database_url):
    with closing(Context(database_url, max_collections=1)) as context:
        for tenant in ("acme", "beta"):
            await context.library.create_collection(key("a", tenant), None, "")
            with pytest.raises(PreconditionFailed, match="there are 1 collections"):
                await context.library.create_collection(key("b", tenant), None, "")


# ---- concurrent callers


async def test_vectors_may_come_after_a_search_that_saw_their_chunks(database_url):
    with closing(Context(database_url, max_chunks=400)) as context:
        for start in range(0, 300, 50):
            await context.ingest(*[Document(f"d{number}", f"apple {number}") for number in range(start, start + 50)])
        await context.embed_all()
        await context.find("apple")
        await context.ingest(Document("new", "apricot"))
        assert await context.sources("apricot") == ["new"]
        await context.embed_all()
        assert (await context.sources("apricot", retriever=Retriever.HYBRID))[0] == "new"


async def test_one_caller_at_a_time_brings_an_index_up_to_date_and_a_stopped_one_to_its_end(context, monkeypatch):
    apply, at_work, most = CollectionIndex.apply, 0, 0

    def slowly(index, changes):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        time.sleep(0.01)
        at_work -= 1
        return apply(index, changes)

    monkeypatch.setattr(CollectionIndex, "apply", slowly)
    for number in range(5):
        await context.ingest(*[Document(f"d{place}", f"alpha {number} {place}") for place in range(10)])
        searches = [asyncio.create_task(context.find("alpha")) for _ in range(6)]
        for one in searches[:3]:
            await asyncio.sleep(0.005)
            one.cancel()
        await asyncio.gather(*searches, return_exceptions=True)
    assert most == 1
    index = await context.indexes.open(key("docs"))
    assert index.live_count == len(await context.find("alpha 4")) == 10


# ---- filters, diversity, expansion


async def test_filters_apply_before_the_best_are_chosen(context):
    many = [
        Document(f"d{number}", f"word {'word ' * (number % 3)}{number}", f'{{"year": {number}}}')
        for number in range(40)
    ]
    await context.ingest(*many)
    await context.embed_all()
    for retriever in Retriever:
        assert await context.sources("word", retriever=retriever, max_chunks=1, filter="metadata.year == 17") == ["d17"]
    assert await context.sources("word", filter='source == "d3" || metadata.year > 38.5') == ["d3", "d39"]
    assert await context.sources("word", filter="metadata.missing == 1") == []
    await context.ingest(Document("new", "word", '{"year": 17}'))
    assert await context.sources("word", filter="metadata.year == 17") == ["d17", "new"]
    with pytest.raises(InvalidRequest, match=r"policy.filter: .*'output'"):
        await context.find("word", filter="output == 1")
    with pytest.raises(InvalidRequest, match=r"policy.filter 'source' gives a text for document"):
        await context.find("word", filter="source")


async def test_diversity_prefers_texts_unlike_those_before(context):
    await context.ingest(
        Document("a1", "red ripe"), Document("a2", "red ripe rain rose"), Document("b", "red blue big bear")
    )
    await context.embed_all()
    assert await context.sources("red ripe", max_chunks=2) == ["a1", "a2"]
    assert await context.sources("red ripe", max_chunks=2, diversity=0.7) == ["a1", "b"]


async def test_chunks_come_with_their_neighbours_or_their_section(context):
    text = (
        "# One\n\n"
        + "alpha beta gamma delta. " * 2
        + "\n\n# Two\n\n"
        + "one two three four. " * 2
        + "target. "
        + "five six seven. " * 2
    )
    outline = Outline((), (Heading(0, 1, "One"), Heading(text.index("# Two"), 1, "Two")))
    await context.ingest(Document("a", text, outline=outline))
    (alone,) = await context.find("target", max_chunks=1)
    (wider,) = await context.find("target", max_chunks=1, expansion=Expansion(neighbours=1))
    (section,) = await context.find("target", max_chunks=1, expansion=Expansion(has_section=True))
    assert alone.location.heading == "Two"
    for chunk in (alone, wider, section):
        assert text[chunk.location.start : chunk.location.end] == chunk.content
    assert alone.content in wider.content
    assert len(alone.content) < len(wider.content)
    assert section.content.startswith("# Two")
    assert section.content.endswith("seven.")
    merged = await context.find("one two five six", expansion=Expansion(neighbours=3))
    assert len(merged) == 1


async def test_a_window_that_touches_two_others_joins_them(database_url):
    words = ["apple apple apple apple", "bbb " * 4, "apple apple ccc ccc", "ddd " * 4, "apple apple apple eee"]
    with closing(Context(database_url, chunk_tokens=4)) as context:
        await context.ingest(Document("a", "\n\n".join(words)))
        assert len(await context.find("apple")) == 3
        (window,) = await context.find("apple", expansion=Expansion(neighbours=1))
        assert (window.id, window.location.start, window.location.end) == ("0", 0, len("\n\n".join(words)))


async def test_a_section_has_the_neighbours_beyond_it(database_url):
    parts = ["one one one", "two two two", "target x x", "four four four"]
    text = "\n\n".join(parts)
    outline = Outline((), (Heading(0, 1, "One"), Heading(text.index("four"), 1, "Four")))
    with closing(Context(database_url, chunk_tokens=3)) as context:
        await context.ingest(Document("a", text, outline=outline))
        (chunk,) = await context.find("target", expansion=Expansion(neighbours=1, has_section=True))
        assert chunk.content == text


@pytest.mark.parametrize("expansion", [Expansion(neighbours=1), Expansion(has_section=True)])
async def test_a_document_that_is_replaced_during_a_search_is_left_out_or_new(context, monkeypatch, expansion):
    await context.ingest(Document("a", "apple pie"), Document("b", "apple cake, much of it"))
    read_chunks = context.chunks.read_chunks

    async def replacing(ids):
        found = await read_chunks(ids)
        await context.ingest(Document("a", "pears"))
        return found

    monkeypatch.setattr(context.chunks, "read_chunks", replacing)
    assert await context.sources("apple", expansion=expansion) == ["b"]


# ---- verification


async def test_a_collection_is_as_its_texts_make_it(context):
    await context.ingest(Document("a", "apple avocado. " * 6), Document("b", "banana"))
    await context.embed_all()
    report = await context.verification.verify(key("docs"), 0)
    assert (report.document_count, report.differences) == (2, [])
    assert report.chunk_count == report.embedding_count > 2


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("UPDATE context_chunks SET content = 'changed' WHERE document_id = :b", "is not at its place"),
        (
            "UPDATE context_chunks SET terms = (SELECT terms FROM context_chunks WHERE document_id = :a)",
            "its terms",
        ),
        ("UPDATE context_documents SET text = 'other' WHERE id = :b", "is not at its place"),
        ("DELETE FROM context_chunks WHERE document_id = :b", "has no chunks"),
        (
            "UPDATE context_embeddings SET vector = (SELECT vector FROM context_embeddings ORDER BY chunk_id LIMIT 1)",
            "the embedding",
        ),
    ],
)
async def test_damage_is_found(context, statement, difference):
    await context.ingest(Document("a", "apple"), Document("b", "banana"))
    await context.embed_all()
    await context.access.write(lambda db: _run(db, statement))
    report = await context.verification.verify(key("docs"), 0)
    assert report.difference_count
    assert any(difference in one for one in report.differences), report.differences


def _run(db, statement):
    ids = dict(db.execute(sa.text("SELECT source, id FROM context_documents")).all())
    names = {name: ids[name] for name in ("a", "b") if f":{name}" in statement}
    db.execute(sa.text(statement), names)
