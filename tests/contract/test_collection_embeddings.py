"""The embeddings of a collection over a real database: which are kept, and what searches find by them."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.domain.text.ranking import Fusion
from pagantic_common.testing.clock import FakeClock
from services.context.core.document import CollectionDefaults, Document
from services.context.core.policy import RetrievalPolicy, Retriever
from tests.support.context_app import LEASE_S, Context, key


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        yield opened


async def test_chunks_are_embedded_in_the_background_and_searched_meanwhile(context):
    await context.ingest(Document("a", "apple avocado"), Document("b", "banana blueberry"))
    found = await context.retrieval.retrieve("acme", "apricot", RetrievalPolicy("docs", Retriever.VECTOR))
    assert (found.chunks, found.unembedded_count) == ((), 2)
    await context.embed_all()
    (collection,) = await context.library.list_collections("acme")
    assert collection.embedded_chunk_count == collection.chunk_count == 2
    found = await context.retrieval.retrieve("acme", "apricot", RetrievalPolicy("docs", Retriever.VECTOR))
    assert ([chunk.source for chunk in found.chunks], found.unembedded_count) == (["a", "b"], 0)
    assert found.chunks[0].score == pytest.approx(1.0)
    assert found.chunks[0].score_kind == "cosine"


async def test_hybrid_fuses_words_and_vectors(context):
    await context.ingest(
        Document("word", "zebra quagga"), Document("near", "apple avocado"), Document("both", "zebra apple")
    )
    await context.embed_all()
    for fusion, kind in ((Fusion.RECIPROCAL_RANK, "rrf"), (Fusion.WEIGHTED, "weighted")):
        found = await context.find("zebra apricot", retriever=Retriever.HYBRID, fusion=fusion)
        assert found[0].source == "both"
        assert {chunk.source for chunk in found} == {"word", "near", "both"}
        assert {chunk.score_kind for chunk in found} == {kind}
        assert all(0 < chunk.score <= 1 for chunk in found[:2])


@pytest.mark.parametrize("choice", [{"smoothing": 0.5}, {"diversity": 0.5}])
async def test_what_reads_vectors_works_before_there_are_any(context, choice):
    await context.ingest(Document("a", "apple fig"), Document("b", "apple"))
    found = await context.find("apple", retriever=Retriever.HYBRID, **choice)
    assert [chunk.source for chunk in found] == ["b", "a"]
    assert await context.find("cherry", retriever=Retriever.HYBRID, **choice) == ()


async def test_smoothing_draws_up_what_resembles_the_best_chunks(context):
    best = [Document(f"best {number}", f"zebra apple kiwi lime {number}") for number in range(5)]
    alone = Document("alone", "zebra mango melon mint moss")
    alike = Document("alike", "apple apricot almond avocado")
    await context.ingest(*best, alone, alike)
    await context.embed_all()
    keyword = {"query": "zebra apple kiwi lime", "retriever": Retriever.KEYWORD}
    assert (await context.sources(**keyword))[5:] == ["alone", "alike"]  # each has one word of four
    found = await context.find(**keyword, smoothing=0.5)
    assert [chunk.source for chunk in found[5:]] == ["alike", "alone"]
    kept = await context.sources(**keyword, smoothing=0.5, min_score=found[5].score)
    assert kept == [chunk.source for chunk in found[:6]]


async def test_another_model_embeds_anew_and_no_model_ends_vectors(context):
    await context.ingest(Document("a", "apple"), Document("b", "banana"))
    await context.embed_all()
    assert await context.sources("apricot", retriever=Retriever.VECTOR) == ["a", "b"]
    changed = await context.embedding.change_model(key("docs"), "last")
    assert (changed.options.embedding_model, changed.embedded_chunk_count) == ("last", 0)
    assert await context.sources("aha", retriever=Retriever.VECTOR) == []
    await context.embed_all()
    assert (await context.find("aha", retriever=Retriever.VECTOR))[0].score == pytest.approx(1.0)
    await context.embedding.change_model(key("docs"), "")
    with pytest.raises(PreconditionFailed, match="'docs' has no embeddings"):
        await context.find("aha", retriever=Retriever.VECTOR)
    assert await context.sources("apple") == ["a"]


async def test_a_model_that_is_away_holds_up_no_other(context):
    await context.library.create_collection(key("away"), "", "none")
    await context.ingest(Document("a", "apple"), name="away")
    await context.embedding.change_model(key("away"), "letters")
    context.embedder.failing = {"letters"}
    await context.library.create_collection(key("there"), "last", "none")
    await context.ingest(Document("b", "banana"), name="there")
    async with context.embedding_in_background():
        await context.until_embedded("there")
        assert await context.sources("a", name="there", retriever=Retriever.VECTOR) == ["b"]
        assert await context.sources("apple", name="away") == ["a"]
        context.embedder.failing = set()
        await context.until_embedded()


async def test_a_chunk_that_is_too_long_for_the_model_is_embedded_by_its_beginning(context):
    context.embedder.max_chars = 20
    await context.ingest(Document("a", "apple"), Document("long", "banana " * 7))
    await context.embed_all()
    assert await context.sources("blue", retriever=Retriever.VECTOR) == ["long", "a"]


async def test_embeddings_of_removed_chunks_and_other_models_are_dropped(context):
    await context.ingest(Document("a", "apple"), Document("b", "banana"))
    waiting = await context.embeddings.claim_unembedded(10, [])
    await context.library.delete_documents(key("docs"), ["a"])
    await context.embeddings.put_embeddings(waiting, np.eye(2, 26, dtype=np.float32))
    assert await context.sources("apple", retriever=Retriever.VECTOR) == ["b"]
    await context.embedding.change_model(key("docs"), "last")
    await context.embeddings.put_embeddings(waiting, np.eye(2, 26, dtype=np.float32))
    assert (await context.embeddings.claim_unembedded(10, [])).contents == ["banana"]


async def test_chunks_have_the_prefixes_of_their_collections_model(context):
    await context.library.create_collection(key("docs"), "asymmetric", "")
    await context.ingest(Document("a", "apple"))
    await context.embed_all()
    query, text = await context.embedder.embed("asymmetric", ["query: apple", "zebra: apple"])
    assert (await context.find("apple", retriever=Retriever.VECTOR))[0].score == pytest.approx(float(query @ text))
    report = await context.verification.verify(key("docs"), 10)
    assert (report.embedding_count, report.differences) == (1, [])
    await context.embedding.change_model(key("docs"), "letters")
    await context.embed_all()
    assert (await context.find("apple", retriever=Retriever.VECTOR))[0].score == pytest.approx(1.0)


async def test_a_collection_keeps_its_prefixes_until_it_is_embedded_anew(database_url):
    with closing(Context(database_url)) as before:
        await before.library.create_collection(key("docs"), "asymmetric", "")
        await before.ingest(Document("a", "apple"))
        await before.embed_all()
        (found,) = await before.find("apple", retriever=Retriever.VECTOR)
    with closing(Context(database_url, defaults=CollectionDefaults("letters", "none"))) as after:
        await after.ingest(Document("b", "apple"))
        await after.embed_all()
        assert [one.score for one in await after.find("apple", retriever=Retriever.VECTOR)] == [found.score]
        waiting = replace(await claimed_after_reembedding(after), prefix="zebra: ")
        await after.embeddings.put_embeddings(waiting, np.eye(2, 26, dtype=np.float32))
        assert await after.sources("apple", retriever=Retriever.VECTOR) == []
        await after.embed_all()
        (again,) = await after.find("apple", retriever=Retriever.VECTOR)
        assert again.score == pytest.approx(1.0)


async def claimed_after_reembedding(context):
    await context.embedding.change_model(key("docs"), "asymmetric")
    waiting = await context.embeddings.claim_unembedded(10, [])
    await context.embeddings.release(waiting)
    return waiting


async def test_replicas_of_one_database_claim_different_chunks(postgresql_url):
    clock = FakeClock()
    with closing(Context(postgresql_url, clock=clock)) as one, closing(Context(postgresql_url, clock=clock)) as other:
        await one.ingest(*(Document(name, name) for name in ("apple", "banana", "cherry")))
        first = await one.embeddings.claim_unembedded(2, [])
        second = await other.embeddings.claim_unembedded(2, [])
        assert (first.contents, second.contents) == (["apple", "banana"], ["cherry"])
        assert await other.embeddings.claim_unembedded(2, []) is None
        await one.embeddings.release(first)
        assert (await other.embeddings.claim_unembedded(2, [])).ids == first.ids
        clock.advance(LEASE_S)
        assert (await one.embeddings.claim_unembedded(10, [])).contents == ["apple", "banana", "cherry"]


async def test_replicas_that_embed_at_once_embed_each_chunk_once(postgresql_url):
    with closing(Context(postgresql_url, max_chunks=500)) as one, closing(Context(postgresql_url)) as other:
        texts = [f"word{number}" for number in range(400)]
        embedded = []
        for context in (one, other):
            context.embedder.on_embed = embedded.extend
        for start in range(0, 400, 100):
            await one.ingest(*(Document(text, text) for text in texts[start : start + 100]))
        async with one.embedding_in_background(), other.embedding_in_background():
            await one.until_embedded()
        assert sorted(embedded) == sorted(texts)


async def test_a_replica_that_stops_gives_its_chunks_back(postgresql_url):
    with closing(Context(postgresql_url)) as context:
        await context.ingest(Document("a", "apple"))
        context.embedder.waits = asyncio.Event()
        running = asyncio.create_task(context.embedding.run())
        await context.embedder.reached.wait()
        assert await context.embeddings.claim_unembedded(1, []) is None
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await context.embeddings.claim_unembedded(1, [])).contents == ["apple"]
