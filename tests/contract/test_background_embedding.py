"""Background embedding over a real database: it goes on after failures, and no chunk holds up the others."""

from __future__ import annotations

import asyncio
from contextlib import closing

import numpy as np
import pytest
from sqlalchemy import func, select, update

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, PreconditionFailed, Unavailable
from pagantic_common.telemetry.clock import SystemClock
from pagantic_common.testing.clock import FakeClock
from services.context.adapters.store.schema import chunks, embeddings, unembedded
from services.context.app.embedding import SET_ASIDE_S
from services.context.core.document import Document
from services.context.core.policy import Retriever
from tests.support.context_app import LEASE_S, Context, key


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        yield opened


async def test_embedding_goes_on_after_the_store_failed(context):
    await context.ingest(Document("a", "apple"))
    await rename(context, "context_unembedded", "hidden")
    claim, has_failed = context.embeddings.claim_unembedded, asyncio.Event()

    async def claim_and_note(*arguments, **named):
        try:
            return await claim(*arguments, **named)
        except Exception:
            has_failed.set()
            raise

    context.embeddings.claim_unembedded = claim_and_note
    async with context.embedding_in_background():
        await has_failed.wait()
        await rename(context, "hidden", "context_unembedded")
        await asyncio.wait_for(context.until_embedded(), 60)


async def test_embedding_goes_on_after_an_error_that_nobody_foresaw(context):
    await context.ingest(Document("a", "apple"))
    failures = [ValueError("a broken answer"), ZeroDivisionError("another one")]

    def fail(_texts):
        if failures:
            raise failures.pop()

    context.embedder.on_embed = fail
    async with context.embedding_in_background():
        await asyncio.wait_for(context.until_embedded(), 60)
    assert failures == []


async def test_a_claim_that_cannot_be_released_does_not_keep_the_service_from_stopping(context):
    await context.ingest(Document("a", "apple"))

    async def fail(_chunks):
        raise Unavailable("the store's database does not answer")

    context.embeddings.release = fail
    context.embedder.waits = asyncio.Event()
    running = asyncio.create_task(context.embedding.run())
    await context.embedder.reached.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=10)
    assert done == {running}
    assert running.cancelled()


@pytest.mark.parametrize("error", [Internal("the engine failed"), InvalidRequest("the text is refused")])
async def test_a_chunk_that_the_model_refuses_holds_up_no_other(context, error):
    refuse(context, "poison", error)
    await context.ingest(*(Document(f"d{number}", f"apple {number}") for number in range(7)), Document("bad", "poison"))
    await context.ingest(Document("b", "banana"), name="other", tenant="beta")
    async with context.embedding_in_background():
        await asyncio.wait_for(until_embedded(context, {"acme": 7, "beta": 1}), 60)
        await asyncio.wait_for(until_set_aside(context, "poison"), 60)
    assert await context.embeddings.claim_unembedded(10, []) is None
    (collection,) = await context.library.list_collections("acme")
    assert (collection.chunk_count, collection.embedded_chunk_count) == (8, 7)


async def test_a_chunk_that_was_refused_is_tried_again_later(database_url):
    clock = FakeClock()
    with closing(Context(database_url, clock=clock)) as context:
        refuse(context, "poison", Internal("the engine failed"))
        await context.ingest(Document("good", "apple"), Document("bad", "poison"))
        async with context.embedding_in_background():
            await asyncio.wait_for(until_embedded(context, {"acme": 1}), 60)
            await asyncio.wait_for(until_set_aside(context, "poison", clock), 60)
        assert await context.embeddings.claim_unembedded(10, []) is None
        clock.advance(SET_ASIDE_S)
        assert (await context.embeddings.claim_unembedded(10, [])).contents == ["poison"]


async def test_a_model_that_nobody_serves_sets_no_chunk_aside(context):
    await context.ingest(Document("a", "apple"), Document("b", "banana"))
    refused = refuse(context, "", InvalidRequest("no engine serves it", code=ErrorCode.CONFIG_NO_ENGINE))
    async with context.embedding_in_background():
        await until(lambda: len(refused) > 1)
    assert [len(texts) for texts in refused] == [2] * len(refused)


async def test_a_collection_is_made_while_its_model_is_away(context):
    context.asked.failing.add("letters")
    made = await context.library.create_collection(key("docs"), "letters", "")
    stored = await context.ingest(Document("a", "apple"), name="other")
    assert made.options.embedding_model == stored.collection.options.embedding_model == "letters"


async def test_collections_are_embedded_in_turn(context):
    await context.ingest(*(Document(f"d{number}", f"apple {number}") for number in range(4)))
    await context.ingest(Document("b", "banana"), name="small", tenant="beta")
    await context.ingest(Document("c", "cherry"), name="small", tenant="gamma")
    last, tenants = 0, []
    for _ in range(4):
        claimed = await context.embeddings.claim_unembedded(1, [], after=last)
        await context.embeddings.put_embeddings(claimed, np.eye(1, 26, dtype=np.float32))
        last = claimed.collection_id
        tenants.append(claimed.tenant)
    assert tenants == ["acme", "beta", "gamma", "acme"]


async def test_vectors_of_another_length_are_refused_and_their_chunks_set_aside(context):
    await context.ingest(Document("a", "apple"))
    await context.embed_all()
    await context.ingest(Document("b", "banana"))
    claimed = await context.embeddings.claim_unembedded(1, [])
    with pytest.raises(PreconditionFailed, match=r"'letters' makes vectors of 3 values, .* 'docs' have 26: .*Reembed"):
        await context.embeddings.put_embeddings(claimed, np.eye(1, 3, dtype=np.float32))
    await context.embeddings.release(claimed)
    context.embedder.embed = embed_shortly
    await context.ingest(Document("c", "cherry"), name="other")
    async with context.embedding_in_background():
        await asyncio.wait_for(until_embedded(context, {"acme": 2}), 60)
        await until_set_aside(context, "banana")
    assert await context.sources("apple banana", retriever=Retriever.BM25) == ["a", "b"]


async def test_an_index_that_meets_vectors_of_another_length_forgets_those_before(context):
    await context.ingest(Document("apple", "apple"))
    await context.embed_all()
    assert await context.sources("apricot", retriever=Retriever.VECTOR) == ["apple"]
    await context.ingest(Document("banana", "banana"))
    await context.embed_all()
    await shorten_last_vector(context)
    index = await context.indexes.open(key("docs"))
    assert (index.live_count, index.embedded_count) == (2, 1)


async def test_mixed_vectors_of_earlier_versions_do_not_end_searches(context):
    await context.ingest(*(Document(text, text) for text in ("apple", "banana", "cherry")))
    await context.embed_all()
    await shorten_last_vector(context)
    assert await context.sources("cherry") == ["cherry"]
    assert await context.sources("apricot", retriever=Retriever.VECTOR) == ["apple", "banana"]


async def shorten_last_vector(context):
    newest = select(func.max(embeddings.c.chunk_id)).scalar_subquery()
    shortened = update(embeddings).where(embeddings.c.chunk_id == newest)
    shortened = shortened.values(vector=func.substr(embeddings.c.vector, 1, 8))
    await context.access.write(lambda db: db.execute(shortened))


async def embed_shortly(_model, texts):
    return np.eye(len(texts), 3, dtype=np.float32)


async def until_set_aside(context, content, clock=None):
    """Return when the only chunk that waits for a later time than a claim of it would end has the content."""
    later_s = (clock or SystemClock()).now().timestamp() + 2 * LEASE_S
    joined = select(chunks.c.content).join(unembedded, unembedded.c.chunk_id == chunks.c.id)
    waiting = joined.where(unembedded.c.claimed_until > later_s)
    while True:
        if await context.access.read(lambda db: db.execute(waiting).scalars().all()) == [content]:
            return
        await asyncio.sleep(0.01)


def refuse(context, word, error):
    """Let the model refuse texts that have a word, and return a list that gets them."""
    refused = []

    def check(texts):
        if any(word in text for text in texts):
            refused.append(list(texts))
            raise error

    context.embedder.on_embed = check
    return refused


async def until_embedded(context, counts):
    """Return when each tenant has a number of embedded chunks."""
    while True:
        found = {tenant: await context.library.list_collections(tenant) for tenant in counts}
        if {tenant: sum(one.embedded_chunk_count for one in found[tenant]) for tenant in counts} == counts:
            return
        await asyncio.sleep(0.01)


async def until(condition):
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


async def rename(context, table, name):
    await context.access.write(lambda db: db.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {name}"))
