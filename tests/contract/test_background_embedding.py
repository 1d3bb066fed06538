"""Background embedding over a real database: it goes on after failures, and no chunk holds up the others."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from pagantic_common.domain.errors import Unavailable
from services.context.core.document import Document
from tests.support.context_app import Context


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        yield opened


async def test_embedding_goes_on_after_the_store_failed(context):
    await context.ingest(Document("a", "apple"))
    await rename(context, "context_unembedded", "hidden")
    async with context.embedding_in_background():
        await until(lambda: context.access._problem)
        await rename(context, "hidden", "context_unembedded")
        await asyncio.wait_for(context.until_embedded(), 10)


async def test_embedding_goes_on_after_an_error_that_nobody_foresaw(context):
    await context.ingest(Document("a", "apple"))
    failures = [ValueError("a broken answer"), ZeroDivisionError("another one")]

    def fail(_texts):
        if failures:
            raise failures.pop()

    context.embedder.on_embed = fail
    async with context.embedding_in_background():
        await asyncio.wait_for(context.until_embedded(), 10)
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


async def until(condition):
    while True:
        if condition():
            return
        await asyncio.sleep(0.01)


async def rename(context, table, name):
    await context.access.write(lambda db: db.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {name}"))
