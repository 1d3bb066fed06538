"""The filters of searches take no more of the service than their share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import closing

import pytest

from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import Overloaded
from pagantic_common.telemetry.scope import work_scope
from services.context.app import retrieval
from services.context.core.document import Document
from services.context.core.search import collection_index
from tests.support.context_app import Context

SELECTS = 'source == "d7"'


@pytest.fixture
async def context(database_url):
    with closing(Context(database_url)) as opened:
        for tenant in ("acme", "beta"):
            await opened.ingest(*(Document(f"d{number}", f"word {number}") for number in range(20)), tenant=tenant)
        yield opened


@pytest.fixture
def slow_filters(monkeypatch):
    """Make filters slow: 10 ms a document. Return an event of the first, and the number of documents by filter."""
    counts, has_begun = Counter(), threading.Event()

    def select_slowly(expression, source, _metadata_json):
        counts[expression.text] += 1
        has_begun.set()
        time.sleep(0.01)
        return source == "d7"

    monkeypatch.setattr(collection_index, "is_selected", select_slowly)
    return has_begun, counts


async def sources(context, tenant="acme", **policy):
    with work_scope(principal=work_of(tenant)):
        return [chunk.source for chunk in await context.find("word", tenant=tenant, **policy)]


async def test_a_filter_that_takes_too_long_is_refused_and_goes_on_with_the_next_request(context, monkeypatch):
    monkeypatch.setattr(retrieval, "MAX_FILTER_S", 0.0)
    for done in range(1, 20):
        with pytest.raises(Overloaded, match=f"evaluated for {done} of 20 documents") as refused:
            await sources(context, filter=SELECTS)
        assert refused.value.retry_after_s == retrieval.FILTER_RETRY_S
    for _ in range(2):
        assert await sources(context, filter=SELECTS) == ["d7"]


async def test_the_evaluation_of_a_filter_ends_when_its_caller_leaves(context, slow_filters):
    has_begun, counts = slow_filters
    search = asyncio.create_task(sources(context, filter=SELECTS))
    await asyncio.to_thread(has_begun.wait)
    search.cancel()
    await asyncio.wait([search])
    await asyncio.sleep(0.02)
    done = counts[SELECTS]
    await asyncio.sleep(0.05)
    assert counts[SELECTS] == done < 20
    assert await sources(context, filter=SELECTS) == ["d7"]
    assert counts[SELECTS] == 20


async def test_a_tenant_with_many_filters_leaves_room_for_another(context, slow_filters):
    await sources(context, "beta")
    many = [asyncio.create_task(sources(context, filter=f"{SELECTS} || {number} > 99")) for number in range(6)]
    await asyncio.to_thread(slow_filters[0].wait)
    assert await sources(context, "beta", filter=SELECTS) == ["d7"]
    assert sum(call.done() for call in many) <= 2, "they take turns"
    assert await asyncio.gather(*many) == [["d7"]] * 6
