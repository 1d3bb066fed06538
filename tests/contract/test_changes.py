"""Who waits for a change is woken by its commit, at whichever orchestrator."""

import asyncio

import psycopg
import pytest
from structlog.testing import capture_logs

from services.orchestrator.adapters.journal.changes import hub, notices
from tests.support.journal_records import admit, ended, happened, record
from tests.support.keys import execution, session

LONG_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_but_notifications_wakes(monkeypatch):
    monkeypatch.setattr(hub, "FALLBACK_S", LONG_S)


async def told(*journals):
    async with asyncio.timeout(60):
        while not all(one._hub.has_notifications for one in journals):  # noqa: ASYNC110 - there is no event of it
            await asyncio.sleep(0.01)


async def woken(watch, poll_s=LONG_S):
    async with asyncio.timeout(60):
        await watch.wait(poll_s)


async def test_a_commit_wakes_who_waits_at_the_same_orchestrator(journal):
    await admit(journal, session_id="s")
    with journal.watching(execution("r")) as of_execution, journal.watching(session("s")) as of_session:
        await journal.write(happened(record(session_id="s"), 1))
        await woken(of_execution)
        await of_session.wait(LONG_S, 0.05)
        assert not of_session.changed.is_set()
        await journal.write(ended(record(session_id="s"), 2))
        await woken(of_execution)
        await woken(of_session)
        waiting = asyncio.create_task(of_execution.wait(LONG_S))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await journal.release([execution("other")])
        await asyncio.wait_for(waiting, 60)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_commit_wakes_who_waits_at_another_orchestrator(journals):
    one, other = await journals("a"), await journals("b")
    await told(one, other)
    await admit(one, session_id="s")
    with other.watching(execution("r")) as of_execution, other.watching(session("s")) as of_session:
        await one.write(happened(record(session_id="s"), 1))
        await woken(of_execution)
        await one.write(ended(record(session_id="s"), 2))
        await woken(of_execution)
        await woken(of_session)
    assert other._hub._watches == {}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_an_orchestrator_tells_nothing_that_nobody_waits_for(journals, monkeypatch):
    one, other = await journals("a"), await journals("b")
    await told(one, other)
    sent = []
    monkeypatch.setattr(one._hub, "on_due", lambda: sent.extend(one._hub.take_due()))
    await admit(one)
    await one.write(ended(record(), 1))
    assert sent == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_a_lost_listening_connection_is_made_again_and_everybody_looks_meanwhile(
    journals, database_url, monkeypatch
):
    monkeypatch.setattr(notices, "RETRY_S", 0.05)
    one, other = await journals("a"), await journals("b")
    await told(one, other)
    await admit(one)
    with other.watching(execution("r")) as watch:
        with psycopg.connect(database_url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        await woken(watch)
        await told(one, other)
        watch.changed.clear()
        await one.write(happened(record(), 1))
        await woken(watch)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_an_orchestrator_that_hears_nothing_polls_and_says_so_once(journals, monkeypatch):
    monkeypatch.setattr(notices, "RENEW_S", 0.05)
    monkeypatch.setattr(notices, "LISTEN", notices.text("SELECT 1"))  # as a pooler does that gives it to another one
    with capture_logs() as logs:
        journal = await journals("a")
        with journal.watching(execution("r")) as watch:
            await woken(watch, 0.5)
    said = [one["event"] for one in logs if "notices" in one["event"]]
    assert said == ["the journal's notices do not arrive: what waits looks ten times a second"]
