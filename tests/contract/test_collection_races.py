"""Changes of one collection that meet each other, over a real database."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing

import pytest

from pagantic_common.domain.errors import Conflict, NotFound
from services.context.adapters.store import collections
from services.context.core.document import Document
from services.context.core.policy import RetrievalPolicy, Retriever
from tests.support.context_app import Context, key


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        yield opened


async def test_an_index_that_missed_a_reembedding_is_read_whole_after_many_removals(context, monkeypatch):
    monkeypatch.setattr("services.context.adapters.store.collections.MAX_REMOVALS", 4)
    await context.ingest(Document("kept", "apple"), *(Document(f"d{number}", "word") for number in range(6)))
    for number in range(3):
        await context.library.delete_documents(key("docs"), [f"d{number}"])
    await context.embed_all()
    seen = (await context.find("apricot", retriever=Retriever.VECTOR))[0]
    assert seen.score == pytest.approx(1.0)
    await context.embedding.change_model(key("docs"), "last")
    await context.library.delete_documents(key("docs"), ["d3", "d4"])
    found = await context.retrieval.retrieve("acme", "apricot", RetrievalPolicy("docs", Retriever.VECTOR))
    assert (found.chunks, found.unembedded_count) == ((), 2)


async def test_a_collection_deleted_during_an_ingest_leaves_nothing(postgresql_url, monkeypatch):
    with closing(Context(postgresql_url)) as one, closing(Context(postgresql_url)) as other:
        await one.ingest(Document("old", "one"), Document("kept", "two"))
        pause = Pause(monkeypatch, "_insert_document")
        ingest = asyncio.create_task(one.ingest(Document("old", "secret text")))
        await asyncio.to_thread(pause.reached.wait)
        deletion = asyncio.create_task(other.library.delete_collection(key("docs")))
        await until_blocked(one)
        pause.ends.set()
        assert (await ingest).replaced == 1
        await deletion
        for table in ("collections", "documents", "chunks", "embeddings", "unembedded", "removals"):
            count = f"SELECT count(*) FROM context_{table}"  # noqa: S608 - made of constants
            assert await one.access.read(lambda db, count=count: db.exec_driver_sql(count).scalar()) == 0, table


async def test_documents_of_a_collection_that_goes_are_not_found(postgresql_url, monkeypatch):
    with closing(Context(postgresql_url)) as one, closing(Context(postgresql_url)) as other:
        await one.ingest(Document("a", "alpha"))
        pause = Pause(monkeypatch, "_delete_collection", after=True)
        deletion = asyncio.create_task(one.library.delete_collection(key("docs")))
        await asyncio.to_thread(pause.reached.wait)
        removal = asyncio.create_task(other.library.delete_documents(key("docs"), ["a"]))
        await until_blocked(one)
        pause.ends.set()
        await deletion
        with pytest.raises(NotFound, match="'docs'"):
            await removal


class Pause:
    """Stops the first call of a function of the store, before or after its work, until `ends` is set."""

    def __init__(self, monkeypatch, name, *, after=False):
        self.reached, self.ends = threading.Event(), threading.Event()
        self._work, self._after = getattr(collections, name), after
        monkeypatch.setattr(collections, name, self._call)

    def _call(self, *arguments):
        if self.reached.is_set():
            return self._work(*arguments)
        if not self._after:
            self._wait()
        result = self._work(*arguments)
        if self._after:
            self._wait()
        return result

    def _wait(self):
        self.reached.set()
        assert self.ends.wait(60)


async def until_blocked(context):
    """Return when a transaction of the database waits for another one."""
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while True:
        if await context.access.read(lambda db: db.exec_driver_sql(blocked).scalar()):
            return
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("change", ["delete_collection", "delete_documents", "ingest"])
async def test_an_ingest_does_not_count_on_documents_that_change_meanwhile(context, change):
    await context.ingest(Document("same", "alpha"))
    changes = {
        "delete_collection": lambda: context.library.delete_collection(key("docs")),
        "delete_documents": lambda: context.library.delete_documents(key("docs"), ["same"]),
        "ingest": lambda: context.ingest(Document("same", "other")),
    }
    find_digests = context.collections.find_digests

    async def find_and_change(*arguments):
        context.collections.find_digests = find_digests
        found = await find_digests(*arguments)
        await changes[change]()
        return found

    context.collections.find_digests = find_and_change
    with pytest.raises(Conflict, match="send the documents again"):
        await context.ingest(Document("same", "alpha"), Document("new", "beta"))
    stored = "SELECT count(*) FROM context_documents WHERE source = 'new'"
    assert await context.access.read(lambda db: db.exec_driver_sql(stored).scalar()) == 0
    await context.ingest(Document("same", "alpha"), Document("new", "beta"))
    assert await context.sources("alpha beta") == ["same", "new"]
