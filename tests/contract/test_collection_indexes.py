"""The memory of a collection's index is bounded: what it holds of the documents, and how many there are at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing

import pytest
import sqlalchemy as sa

from pagantic_common.domain.errors import PreconditionFailed
from services.context.adapters.store.schema import collections, documents
from services.context.core.document import Document
from services.context.core.policy import Retriever
from services.context.core.search.collection_index import CollectionIndex
from tests.support.context_app import Context, key


async def check_count(context, expected):
    """Compare the counted bytes of the first collection with the stored documents and with `expected`."""
    held = (await context.access.read(lambda db: db.execute(sa.select(collections.c.metadata_bytes)))).scalars()
    rows = (await context.access.read(lambda db: db.execute(sa.select(documents)))).all()
    assert list(held) == [sum(len((row.source + row.metadata_json).encode()) for row in rows)] == [expected]


async def test_sources_and_metadata_of_a_collection_have_a_size(database_url):
    with closing(Context(database_url, max_metadata_bytes=35)) as context:
        await context.ingest(Document("a", "alpha", '{"k": 1}'), Document("b", "beta", '{"ä": 1}'))
        await check_count(context, 9 + 10)
        for _ in range(2):
            with pytest.raises(PreconditionFailed, match="would have 41 bytes of sources and metadata, at most 35 are"):
                await context.ingest(Document("c", "gamma", '{"long": "123456789"}'))
            await check_count(context, 19)
        assert await context.sources("gamma") == []
        await context.ingest(Document("a", "alpha"))
        await check_count(context, 11)
        await context.ingest(Document("a", "alpha"), Document("c", "gamma", '{"long": "123456789"}'))
        await check_count(context, 33)
        assert await context.library.delete_documents(key("docs"), ["b", "c", "none"]) == 2
        await check_count(context, 1)


async def fill(context, name, count, words=6, metadata="{}"):
    generator = random.Random(f"{name}{count}")  # noqa: S311 - words of a test
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        texts = (" ".join(f"w{generator.randrange(300)}" for _ in range(words)) for _ in numbers)
        await context.ingest(
            *(Document(f"{name}/{number}", text, metadata) for number, text in zip(numbers, texts, strict=True)),
            name=name,
        )


@pytest.mark.parametrize(
    ("count", "words", "metadata"), [(300, 6, "{}"), (30, 6, '{"long": "' + "x" * 9000 + '"}'), (200, 60, "{}")]
)
@pytest.mark.parametrize("is_embedded", [False, True])
async def test_the_memory_of_an_index_is_known_before_it_is_built(database_url, count, words, metadata, is_embedded):
    with closing(Context(database_url, max_chunks=1000, chunk_tokens=100)) as context:
        await fill(context, "docs", count, words, metadata)
        if is_embedded:
            await context.embed_all()
        estimate = await context.chunks.index_bytes(key("docs"))
        built = (await context.indexes.open(key("docs"))).size_bytes
        assert estimate / 2 < built < 2 * estimate


async def test_an_index_that_is_too_large_is_refused_and_no_other_suffers(database_url):
    with closing(Context(database_url, max_chunks=1000, max_index_bytes=50_000)) as context:
        await fill(context, "small", 5)
        await fill(context, "grows", 40)
        assert await context.sources("w1 w2 w3", name="grows", retriever=Retriever.KEYWORD)
        kept = await context.indexes.open(key("small"))
        await fill(context, "large", 300)
        await fill(context, "grows", 200)
        for name in ("large", "grows", "large"):
            with pytest.raises(PreconditionFailed, match=rf"collection '{name}' needs \d+ bytes .*MAX_INDEX_BYTES"):
                await context.indexes.open(key(name))
            assert await context.indexes.open(key("small")) is kept
        await context.library.delete_documents(key("grows"), [f"grows/{number}" for number in range(20, 200)])
        assert (await context.indexes.open(key("grows"))).live_count == 20


async def test_indexes_that_are_built_at_once_have_room_for_all(database_url, monkeypatch):
    limit, sizes, at_once = 120_000, (10, 60, 150, 20, 100, 40), []
    with closing(Context(database_url, max_chunks=1000, max_index_bytes=limit)) as context:
        apply, indexes, running = CollectionIndex.apply, context.indexes, set()

        def measure(index, changes):
            running.add(id(index))
            kept = sum(each.size_bytes for each in list(indexes._kept.values()))
            at_once.append((len(running), kept + indexes._reserved_bytes))
            try:
                return apply(index, changes)
            finally:
                running.discard(id(index))

        for number, size in enumerate(sizes):
            await fill(context, f"c{number}", size)
        monkeypatch.setattr(CollectionIndex, "apply", measure)
        generator = random.Random(1)  # noqa: S311 - names of a test
        for _ in range(5):
            names = [f"c{generator.randrange(len(sizes))}" for _ in range(12)]
            opened = await asyncio.gather(*(indexes.open(key(name)) for name in names))
            assert [index.live_count for index in opened] == [sizes[int(name[1:])] for name in names]
            assert sum(each.size_bytes for each in indexes._kept.values()) <= limit
            await context.ingest(Document("more", f"text {generator.random()}"), name="c3")
            sizes = (*sizes[:3], 21, *sizes[4:])
    assert max(size for _, size in at_once) <= limit
    assert len(at_once) > len(sizes), "some were dropped and built again"
    assert indexes._reserved_bytes == 0
