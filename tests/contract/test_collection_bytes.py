"""The counts of collections are what the tables hold, and a tenant has so many bytes and no more."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from random import Random

import pytest
from sqlalchemy import select, text

from pagantic_common.domain.errors import ErrorCode, Overloaded, PaganticError
from pagantic_common.storage.database import ROW_BYTES
from services.context.adapters.store import collections as stored_collections
from services.context.adapters.store.schema import chunks, collections, documents, embeddings
from services.context.core.document import Document
from services.context.core.outline import Heading, Outline
from tests.support.context_app import Context, key
from tests.support.examples import examples

ROUNDS = 2
STEPS = 2 * examples(50)
CONTENT = {
    documents: ("source", "metadata_json", "outline_json", "text"),
    chunks: ("heading", "content", "terms"),
    embeddings: ("vector",),
}


async def held(context):
    """Return the bytes that the tables hold by collection. Rows without a collection count too."""
    sizes = Counter()
    for table, columns in CONTENT.items():
        for row in await context.access.read(lambda db, table=table: db.execute(select(table)).mappings().all()):
            values = [row[column] for column in columns]
            encoded = [value.encode() if isinstance(value, str) else value for value in values]
            sizes[row["collection_id"]] += ROW_BYTES + sum(map(len, encoded))
    return sizes


async def counted(context):
    query = select(collections.c.id, collections.c.stored_bytes).where(collections.c.stored_bytes != 0)
    return dict(await context.access.read(lambda db: db.execute(query).all()))


def document(random):
    words = " ".join(random.choice(["alpha", "bêta", "😀"]) for _ in range(random.randrange(1, 40)))
    headings = (Heading(0, 1, "Tïtle"),) if random.random() < 0.5 else ()
    metadata = random.choice(["", '{"k": "é"}'])
    return Document(random.choice("abc"), words, metadata, Outline(headings=headings))


async def step(context, random):
    name, tenant = random.choice(["one", "two"]), random.choice(["acme", "beta"])
    match random.randrange(7):
        case 0 | 1 | 2:
            made = {made.source: made for made in (document(random) for _ in range(random.randrange(1, 4)))}
            await context.ingest(*made.values(), name=name, tenant=tenant)
        case 3:
            await context.library.delete_documents(key(name, tenant), random.sample("abc", 2))
        case 4:
            await context.embed_all()
        case 5:
            await context.embedding.change_model(key(name, tenant), random.choice(["letters", ""]))
        case 6:
            await context.library.delete_collection(key(name, tenant))


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_the_counts_are_what_the_tables_hold(database_url, seed):
    random = Random(seed)  # noqa: S311 - the same whenever it runs
    largest = 0
    with closing(Context(database_url)) as context:
        for number in range(STEPS // ROUNDS):
            with suppress(PaganticError):
                await step(context, random)
            sizes = await held(context)
            assert await counted(context) == sizes, f"after step {number}"
            largest = max(largest, *sizes.values(), 0)
    assert largest > 10 * ROW_BYTES, "something was stored"


async def test_a_tenant_that_is_full_is_refused_alone(database_url):
    with closing(Context(database_url, max_tenant_bytes=6000)) as context:
        await context.ingest(Document("a", "word " * 100), name="one")
        with pytest.raises(Overloaded, match="collections of tenant 'acme' would have") as refused:
            await context.ingest(Document("b", "word " * 100), Document("c", "word " * 100), name="two")
        assert refused.value.code is ErrorCode.QUOTA_STORAGE
        assert "MAX_STORED_BYTES_OF_TENANT" in str(refused.value)
        assert [found.name for found in await context.library.list_collections("acme")] == ["one"]
        await context.ingest(Document("b", "word " * 100), name="one", tenant="beta")
        assert (await context.find("word", name="one"))[0].source == "a"
        await context.library.delete_documents(key("one"), ["a"])
        await context.ingest(Document("b", "word " * 100), name="two")


async def test_a_document_may_shrink_though_its_tenant_is_full(database_url, monkeypatch):
    with closing(Context(database_url, max_tenant_bytes=0)) as context:
        await context.ingest(Document("a", "word " * 100))
        monkeypatch.setattr(stored_collections, "room_bytes", lambda _db: 100)
        assert (await context.ingest(Document("a", "word"))).replaced == 1
        with pytest.raises(Overloaded, match="at most 100 are kept"):
            await context.ingest(Document("a", "word word"))


async def test_earlier_collections_are_counted_when_they_are_opened(database_url):
    with closing(Context(database_url)) as context:
        for name in ("one", "two"):
            outline = Outline(headings=(Heading(0, 1, "Tïtle"),))
            await context.ingest(Document("a", "bêta " * 30, '{"k": "é"}', outline), Document("b", "alpha"), name=name)
        await context.embed_all()
        before = await counted(context)
        await context.access.write(_back_to_revision_3)
    with closing(Context(database_url)) as again:
        assert await counted(again) == before == await held(again)


def _back_to_revision_3(db):
    db.execute(text("ALTER TABLE context_collections DROP COLUMN stored_bytes"))
    db.execute(text("UPDATE context_version SET version_num = '0003'"))
