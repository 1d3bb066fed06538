"""Changes of one collection that meet each other, over a real database."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

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
