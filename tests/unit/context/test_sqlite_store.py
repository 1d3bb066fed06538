from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing

import pytest

from pagantic_common.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
    Unsupported,
)
from pagantic_common.telemetry.clock import SystemClock
from services.context.adapters.sqlite_store import SqliteStore
from services.context.app.library import Library
from services.context.app.retrieval import Retrieval
from services.context.core.chunk import select_chunks
from services.context.core.document import CollectionKey, Document, IngestBounds
from services.context.core.policy import RetrievalPolicy, Retriever

BOUNDS = IngestBounds(100, 10_000)
GROWS = '{"a":[' + "1e9," * 3000 + "1]}"  # 12 KiB, of which a reranker would make 36


def key(name, tenant="acme"):
    return CollectionKey(tenant, name)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "context.sqlite3"


@pytest.fixture
def store(path):
    store = SqliteStore(path, SystemClock(), max_chunks=50)
    yield store
    store.close()


@pytest.fixture
def library(store):
    return Library(store, BOUNDS, chunk_chars=40, overlap_chars=0)


async def test_ingest_adds_replaces_and_leaves_alone(library):
    first = await library.ingest(key("docs"), [Document("a", "alpha"), Document("b", "beta")])
    assert (first.added, first.replaced, first.unchanged) == (2, 0, 0)
    second = await library.ingest(key("docs"), [Document("a", "alpha"), Document("b", "new"), Document("c", "gamma")])
    assert (second.added, second.replaced, second.unchanged) == (1, 1, 1)
    assert (second.collection.document_count, second.collection.chunk_count) == (3, 3)


async def test_what_was_ingested_is_there_after_a_restart(path):
    store = SqliteStore(path, SystemClock(), max_chunks=50)
    await Library(store, BOUNDS, 40, 0).ingest(key("docs"), [Document("a", "alpha", '{"k": 1}')])
    store.close()
    again = SqliteStore(path, SystemClock(), max_chunks=50)
    _, chunks = await again.load_chunks(key("docs"))
    assert [(chunk.id, chunk.content, chunk.source, chunk.metadata_json) for chunk in chunks] == [
        ("0", "alpha", "a", '{"k": 1}')
    ]
    again.close()


async def test_commit_waits_for_the_disk(store):
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_ingest_that_fails_stores_nothing(library, store):
    await library.ingest(key("docs"), [Document("a", "alpha")])
    with pytest.raises(PreconditionFailed, match="at most 50"):
        await library.ingest(key("docs"), [Document("b", "beta"), Document("big", "word " * 1000)])
    with pytest.raises(PreconditionFailed):
        await library.ingest(key("fresh"), [Document("big", "word " * 1000)])
    assert [(one.name, one.document_count) for one in await store.list_collections("acme")] == [("docs", 1)]


async def test_collections_are_made_listed_and_removed(library):
    made = await library.create_collection(key("b"))
    await library.create_collection(key("a"))
    assert (made.name, made.document_count, made.chunk_count) == ("b", 0, 0)
    assert [one.name for one in await library.list_collections("acme")] == ["a", "b"]
    with pytest.raises(Conflict, match="'a'"):
        await library.create_collection(key("a"))
    await library.delete_collection(key("a"))
    with pytest.raises(NotFound, match="'a'"):
        await library.delete_collection(key("a"))


async def test_deleting_documents_counts_those_that_were_there(library):
    await library.ingest(key("docs"), [Document("a", "alpha"), Document("b", "beta")])
    assert await library.delete_documents(key("docs"), ["a", "a", "zzz"]) == 1
    with pytest.raises(NotFound):
        await library.delete_documents(key("none"), ["a"])


async def test_concurrent_ingests_all_arrive(library):
    await asyncio.gather(*(library.ingest(key("docs"), [Document(f"d{number}", "text")]) for number in range(20)))
    assert (await library.list_collections("acme"))[0].document_count == 20


@pytest.mark.parametrize("damage", [b"not a database, but long enough to be read as one" * 50, None])
def test_file_that_is_no_store_is_refused(path, damage):
    path.parent.mkdir()
    if damage is None:
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version = 99")
        db.close()
    else:
        path.write_bytes(damage)
    with pytest.raises(InvalidRequest, match="cannot be used"):
        SqliteStore(path, SystemClock(), max_chunks=50)


async def test_retrieval_sees_every_change(library, store):
    retrieval = Retrieval(store, max_index_bytes=1)

    async def find(query, **policy):
        return [chunk.source for chunk in await retrieval.retrieve("acme", query, RetrievalPolicy("docs", **policy))]

    await library.ingest(key("docs"), [Document("a", "red fox"), Document("b", "red red dog"), Document("c", "blue")])
    assert await find("red") == ["b", "a"]
    assert await find("red fox", retriever=Retriever.KEYWORD) == ["a", "b"]
    assert await find("red fox", retriever=Retriever.KEYWORD, min_score=0.6) == ["a"]
    assert await find("red", max_chunks=1) == ["b"]
    assert await find("zebra") == []
    await library.ingest(key("docs"), [Document("a", "zebra")])
    assert await find("zebra") == ["a"]
    await library.delete_collection(key("docs"))
    await library.ingest(key("docs"), [Document("z", "zebra")])
    assert await find("zebra") == ["z"]


async def test_same_content_is_found_once(library, store):
    await library.ingest(key("docs"), [Document("a", "same words"), Document("b", "same words")])
    found = await Retrieval(store, max_index_bytes=1).retrieve("acme", "same", RetrievalPolicy("docs"))
    assert [(chunk.source, chunk.score_kind) for chunk in found] == [("a", "bm25")]


async def test_concurrent_searches_over_more_collections_than_indexes_agree(library, store):
    retrieval = Retrieval(store, max_index_bytes=2000)
    for number in range(4):
        await library.ingest(key(f"c{number}"), [Document(f"s{number}", "word")])
    found = await asyncio.gather(
        *(retrieval.retrieve("acme", "word", RetrievalPolicy(f"c{number % 4}")) for number in range(16))
    )
    assert [chunks[0].source for chunks in found] == [f"s{number % 4}" for number in range(16)]


@pytest.mark.parametrize("retriever", [Retriever.VECTOR, Retriever.HYBRID])
async def test_embedding_retrievers_are_not_supported_yet(store, retriever):
    with pytest.raises(Unsupported, match=retriever.name):
        await Retrieval(store, 1).retrieve("acme", "q", RetrievalPolicy("docs", retriever))


async def test_empty_query_is_refused(store):
    with pytest.raises(InvalidRequest, match="query"):
        await Retrieval(store, 1).retrieve("acme", "  ", RetrievalPolicy("docs"))


async def test_chunks_share_the_metadata_of_their_document(library, store):
    metadata = '{"a": "' + "x" * 10_000 + '"}'
    await library.ingest(key("docs"), [Document("a", "word " * 200, metadata)])
    _, chunks = await store.load_chunks(key("docs"))
    assert len(chunks) > 1
    assert len({id(chunk.metadata_json) for chunk in chunks}) == 1


@pytest.mark.parametrize(
    "metadata", ['{"a":1e999}', r'{"a":"\ud800"}', '{"a":"' + "x" * 20_000 + '"}', "[]", "NaN", GROWS]
)
async def test_metadata_that_could_not_be_told_again_is_refused(library, metadata):
    with pytest.raises(InvalidRequest, match=r"documents\[0\].metadata_json"):
        await library.ingest(key("docs"), [Document("a", "word", metadata)])


async def test_a_search_gives_no_more_than_a_reply_takes(library, store):
    await library.ingest(key("docs"), [Document(f"d{number}", f"word {number}") for number in range(20)])
    retrieval = Retrieval(store, max_index_bytes=1 << 20)
    found = await retrieval.retrieve("acme", "word", RetrievalPolicy("docs"))
    assert len(found) == 20
    assert len(select_chunks(found, None, 0, max_bytes=5 * 1100)) == 5
    assert len(select_chunks(found, None, 0, max_bytes=1)) == 1


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
async def test_a_least_score_that_is_no_number_is_refused(store, score):
    with pytest.raises(InvalidRequest, match="min_score"):
        await Retrieval(store, 1).retrieve("acme", "word", RetrievalPolicy("docs", min_score=score))


async def test_there_are_only_so_many_collections(path):
    with closing(SqliteStore(path, SystemClock(), max_chunks=50, max_collections=2)) as store:
        await store.create_collection(key("a"))
        await store.create_collection(key("b"))
        with pytest.raises(PreconditionFailed, match="2 collections"):
            await store.create_collection(key("c"))
        assert [one.name for one in await store.list_collections("acme")] == ["a", "b"]


async def test_a_store_that_fails_is_not_ready_until_it_works(store):
    assert await store.why_not_ready() == ""
    working = store._db
    store._db = sqlite3.connect(":memory:", check_same_thread=False)  # a file without its tables, as when it was lost
    with pytest.raises(Unavailable):
        await store.list_collections("acme")
    assert "the store cannot be used" in await store.why_not_ready()
    store._db.close()
    store._db = working
    assert await store.why_not_ready() == ""


# ---- tenants


async def test_tenants_share_names_and_nothing_else(library, store):
    await library.ingest(key("docs"), [Document("a", "alpha")])
    await library.ingest(key("docs", "beta"), [Document("b", "beta gamma")])
    retrieval = Retrieval(store, 1 << 20)
    for tenant, source, word in (("acme", "a", "alpha"), ("beta", "b", "gamma")):
        assert [one.document_count for one in await library.list_collections(tenant)] == [1]
        assert [chunk.source for chunk in await retrieval.retrieve(tenant, word, RetrievalPolicy("docs"))] == [source]
    assert await retrieval.retrieve("acme", "gamma", RetrievalPolicy("docs")) == []
    assert await library.delete_documents(key("docs"), ["b"]) == 0
    await library.delete_collection(key("docs"))
    assert [chunk.source for chunk in await retrieval.retrieve("beta", "gamma", RetrievalPolicy("docs"))] == ["b"]


async def test_anothers_collection_is_as_unknown_as_none(library, store):
    await library.ingest(key("docs"), [Document("a", "alpha")])
    for name in ("docs", "none"):
        for call in (
            library.delete_collection(key(name, "beta")),
            library.delete_documents(key(name, "beta"), ["a"]),
            Retrieval(store, 1).retrieve("beta", "alpha", RetrievalPolicy(name)),
        ):
            with pytest.raises(NotFound, match=f"^no collection is named '{name}'$"):
                await call
    assert await library.list_collections("beta") == []


async def test_each_tenant_may_have_the_most_collections(path):
    with closing(SqliteStore(path, SystemClock(), max_chunks=50, max_collections=1)) as store:
        for tenant in ("acme", "beta"):
            await store.create_collection(key("a", tenant))
            with pytest.raises(PreconditionFailed, match="there are 1 collections"):
                await store.create_collection(key("b", tenant))


async def test_collections_of_a_store_without_tenants_are_the_default_ones(path):
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(OF_VERSION_1)
    with closing(SqliteStore(path, SystemClock(), max_chunks=50)) as store:
        library = Library(store, BOUNDS, chunk_chars=40, overlap_chars=0)
        (kept,) = await library.list_collections("default")
        assert (kept.name, kept.document_count, kept.chunk_count) == ("docs", 1, 1)
        assert await library.list_collections("acme") == []
        unchanged = await library.ingest(key("docs", "default"), [Document("a", "alpha")])
        assert unchanged.unchanged == 1
        await library.delete_collection(key("docs", "default"))
        assert store._db.execute("SELECT count(*) FROM chunks").fetchone() == (0,)


OF_VERSION_1 = f"""
CREATE TABLE collections (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, created_at TEXT NOT NULL, revision INTEGER NOT NULL
) STRICT;
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    collection_id INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,
    source TEXT NOT NULL, digest TEXT NOT NULL, metadata_json TEXT NOT NULL,
    UNIQUE (collection_id, source)
) STRICT;
CREATE TABLE chunks (
    document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    position INTEGER NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (document_id, position)
) STRICT, WITHOUT ROWID;
INSERT INTO collections VALUES (7, 'docs', '2026-01-02T03:04:05+00:00', 3);
INSERT INTO documents VALUES (1, 7, 'a', '{Document("a", "alpha").digest}', '');
INSERT INTO chunks VALUES (1, 0, 'alpha');
PRAGMA user_version = 1;
"""  # noqa: S608 - made of constants
