"""What every journal does, in each database."""

import asyncio
import sqlite3
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.errors import (
    Aborted,
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.testing.clock import FakeClock
from services.orchestrator.adapters.journal.database import check_url
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import (
    MAX_STATE_BYTES,
    MAX_STATE_VALUES,
    UsageTotal,
)
from tests.support.journal_records import SAID, TURN, admit, admitted, ended, happened, record, sequences
from tests.support.keys import execution, session

pytestmark = pytest.mark.payloads


@contextmanager
def opened(database_url):
    engine = create_engine(check_url(database_url))
    with engine.begin() as db:
        yield db
    engine.dispose()


async def test_an_execution_is_kept_with_its_events_entries_and_response(journal):
    assert await admit(journal) is None
    await journal.write(replace(happened(record(), 1, 2), entries=(SAID,), position=1))
    assert await journal.entries(execution("r")) == [admitted(), SAID]
    await journal.write(replace(ended(record(), 3), entries=(SAID,), position=2))
    found = await journal.get(execution("r"))
    assert (found.state, found.response.content, found.is_interrupted) == (State.COMPLETE, "hello", False)
    assert await sequences(journal, "r") == [1, 2, 3]
    assert [one.sequence for one in await journal.timeline(execution("r"), after=2)] == [3]
    assert await journal.entries(execution("r")) == [], "nobody takes up what has ended"


async def test_an_id_is_admitted_once_also_when_several_come_together(journal):
    first = await asyncio.gather(*(admit(journal, name) for name in ("a", "b", "b", "c")))
    assert [one is None for one in first].count(True) == 3
    again = await admit(journal, "a", fingerprint="other")
    assert (again.request_id, again.fingerprint) == ("a", "f")
    with pytest.raises(NotFound, match="no execution has request_id 'never'"):
        await journal.timeline(execution("never"))


async def test_an_execution_of_a_new_id_is_stored_with_what_is_written_next(journal):
    begun = asyncio.ensure_future(journal.admit_new(record(), admitted()))
    await asyncio.gather(begun, journal.write(happened(record(), 1)))
    assert await journal.entries(execution("r")) == [admitted()]
    assert await sequences(journal, "r") == [1]


async def test_nothing_is_written_to_another_execution_when_a_new_id_is_not_new(journal):
    await admit(journal)
    works = [journal.admit_new(record(fingerprint="g"), admitted()), journal.write(happened(record(), 1))]
    works.append(journal.write(happened(record(), 2), can_wait=True))
    for error in await asyncio.gather(*works, return_exceptions=True):
        assert isinstance(error, Conflict)
    assert await sequences(journal, "r") == []


async def test_a_write_that_fails_is_undone_alone(journal):
    names = [f"r{number}" for number in range(20)]
    assert await asyncio.gather(*(admit(journal, name) for name in names)) == [None] * 20
    await journal.write(happened(record("r7"), 1))
    writes = (journal.write(happened(record(name), 1)) for name in names)
    found = await asyncio.gather(*writes, return_exceptions=True)
    assert [name for name, error in zip(names, found, strict=True) if error is not None] == ["r7"]
    for name in names:
        assert await sequences(journal, name) == [1]


async def test_the_writes_of_one_caller_keep_their_order_and_closing_writes_them_all(journals):
    journal = await journals()
    await admit(journal)
    writes = [asyncio.ensure_future(journal.write(happened(record(), number))) for number in range(1, 50)]
    await asyncio.sleep(0)
    writes[-1].cancel()  # who gave it has gone; it is written all the same
    await journal.close()
    await asyncio.gather(*writes[:-1])
    again = await journals()
    assert await sequences(again, "r") == list(range(1, 50))
    assert (await again.get(execution("r"))).is_interrupted


async def test_after_a_write_that_failed_nothing_of_its_execution_is_written(journal):
    for name in ("r", "s"):
        await admit(journal, name)
    await journal.write(happened(record("r"), 2))
    writes = [journal.write(happened(record(name), number)) for number in range(1, 5) for name in ("r", "s")]
    found = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(one, Exception) for one in found[::2]] == [False, True, True, True]
    assert await sequences(journal, "r") == [1, 2]
    assert await sequences(journal, "s") == [1, 2, 3, 4]


@pytest.mark.sql_only
async def test_a_database_that_fails_in_the_middle_of_a_write_is_unavailable_and_then_used_again(journal, monkeypatch):
    await admit(journal)
    move = journal._writes._move.run

    def break_down(db, _rows):
        monkeypatch.setattr(journal._writes._move, "run", move)
        if db.dialect.name == "sqlite":
            raise sqlite3.OperationalError("disk I/O error")
        db.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    monkeypatch.setattr(journal._writes._move, "run", break_down)
    writes = [asyncio.ensure_future(journal.write(happened(record(), number))) for number in (1, 2)]
    await asyncio.sleep(0)
    writes.append(asyncio.ensure_future(journal.write(happened(record(), 3))))
    for one in await asyncio.gather(*writes, return_exceptions=True):
        assert isinstance(one, Unavailable)
        assert "the journal's database does not answer" in str(one)
    await journal.write(happened(record(), 1))
    assert await sequences(journal, "r") == [1]


async def test_a_conversation_grows_by_turns_and_goes_with_all_it_has(journal):
    for name in ("r1", "r2"):
        await admit(journal, name, session_id="s")
        await journal.write(ended(record(name, session_id="s"), 1, turn=TURN))
    assert await journal.history(session("s")) == (0, TURN + TURN)
    await journal.update_state(session("s"), {"color": '"red"', "count": "1"}, [])
    found = await journal.update_state(session("s"), {"count": "2"}, ["color"])
    assert (found.message_count, found.state) == (4, {"count": "2"})
    assert [
        one.session_id for one in (await journal.list_sessions(tenant=DEFAULT_TENANT, limit=5, after="")).items
    ] == ["s"]
    await journal.delete_session(session("s"))
    assert await journal.history(session("s")) == (0, ())
    for missing in (journal.get_session(session("s")), journal.delete_session(session("s"))):
        with pytest.raises(NotFound, match="no session has id 's'"):
            await missing
    assert (await journal.update_state(session("s"), {}, [])).state == {}


async def test_a_session_keeps_so_much_and_no_more(journal):
    await journal.update_state(session("s"), {f"k{number}": "1" for number in range(MAX_STATE_VALUES)}, [])
    for values in ({"one-more": "1"}, {"k1": f'"{"x" * MAX_STATE_BYTES}"'}):
        with pytest.raises(InvalidRequest, match="are kept"):
            await journal.update_state(session("s"), values, [])
    found = await journal.update_state(session("s"), {"one-more": "2"}, ["k1"])
    assert len(found.state) == MAX_STATE_VALUES


async def test_what_grows_can_be_read_in_parts(journal):
    for name in ("r1", "r2"):
        await admit(journal, name, session_id="s")
        await journal.write(ended(record(name, session_id="s"), 1, 2, 3, turn=TURN))
    found = await journal.get_session(session("s"), 1)
    assert (found.messages, found.message_count) == (TURN[1:], 4)
    assert (await journal.update_state(session("s"), {}, [])).messages == ()
    assert [one.sequence for one in await journal.timeline(execution("r1"), after=1, limit=1)] == [2]


async def test_a_session_has_one_turn_at_a_time(journals):
    one, other = await journals("a"), await journals("b")
    await admit(one, "r1", session_id="s", takes_turn=True)
    assert await one.take_turn(session("s"), "r1")
    await admit(other, "r2", session_id="s")
    assert not await other.take_turn(session("s"), "r2")
    with pytest.raises(Aborted, match="another turn of session 's' runs"):
        await admit(other, "r3", session_id="s", takes_turn=True)
    with pytest.raises(NotFound):
        await other.get(execution("r3"))
    await one.write(ended(record("r1", session_id="s"), 1, turn=TURN))
    assert await other.take_turn(session("s"), "r2")
    await other.release([execution("r2")])
    await admit(one, "r4", session_id="s", takes_turn=True)


async def test_an_interrupted_execution_keeps_its_turn_for_a_while(journals):
    clock = FakeClock()
    one, other = await journals("a", clock=clock), await journals("b", clock=clock, interrupted_turn_s=5.0)
    await admit(one, "r1", session_id="s", takes_turn=True)
    await admit(other, "r2", session_id="s")
    await one.release([execution("r1")])
    assert not await other.take_turn(session("s"), "r2")
    with pytest.raises(Aborted, match="another turn of session 's' runs"):
        await other.append_messages(session("s"), TURN)
    assert await other.has_turn(session("s"), "r1")
    assert not await other.has_turn(session("s"), "r2")
    assert await other.take_turn(session("s"), "r1")
    assert await other.claim(execution("r1"))
    clock.advance(6)
    assert not await other.take_turn(session("s"), "r2")
    await other.release([execution("r1")])
    clock.advance(6)
    assert await other.take_turn(session("s"), "r2")
    assert not await other.has_turn(session("s"), "r1")


async def test_a_summary_goes_with_its_conversation_and_none_is_kept_without_one(journal):
    await journal.put_summary(session("s"), Summary("said", 2))
    assert await journal.get_summary(session("s")) is None
    await journal.update_state(session("s"), {}, [])
    await journal.put_summary(session("s"), Summary("said", 2))
    await journal.put_summary(session("s"), Summary("said more", 4))
    assert await journal.get_summary(session("s")) == Summary("said more", 4)
    await journal.delete_session(session("s"))
    assert await journal.get_summary(session("s")) is None


async def totals_of(journal, session_id=None, model=None):
    return (
        await journal.usage_totals(tenant=DEFAULT_TENANT, session_id=session_id, model=model, limit=100, after="")
    ).items


async def test_totals_add_up_by_session_and_model(journal):
    used = UsageTotal("s", "m", 1, 10, 4, 3, 0.5)
    for name, total in (("r1", used), ("r2", used), ("r3", replace(used, session_id="", model="n"))):
        await admit(journal, name)
        await journal.write(ended(record(name), 1, used=total))
    assert await totals_of(journal, "s") == [UsageTotal("s", "m", 2, 20, 8, 6, 1.0)]
    assert [one.model for one in await totals_of(journal, None, "n")] == ["n"]
    assert len(await totals_of(journal)) == 2


async def test_totals_are_kept_for_each_subject(journal):
    used = UsageTotal("s", "m", 1, 10, subject="a/ci")
    for name, total in (("r1", used), ("r2", used), ("r3", replace(used, subject="web"))):
        await admit(journal, name)
        await journal.write(ended(record(name), 1, used=total))
    found = await journal.usage_totals(tenant=DEFAULT_TENANT, limit=100, after="")
    assert [(one.subject, one.requests) for one in found.items] == [("a/ci", 2), ("web", 1)]
    only = await journal.usage_totals(tenant=DEFAULT_TENANT, limit=100, after="", subject="web")
    assert [one.subject for one in only.items] == ["web"]


async def test_executions_are_listed_newest_first_by_page_session_state_and_mode(journal):
    for number, mode in enumerate((Mode.CHAT, Mode.PLAN, Mode.CHAT, Mode.REDUNDANT)):
        await admit(journal, f"r{number}", session_id=f"s{number % 2}", mode=mode)
    await journal.write(ended(record("r2", session_id="s0"), 1))
    filters = {"tenant": DEFAULT_TENANT, "limit": 3, "after": "", "session_id": "", "state": None, "metadata": {}}

    async def listed(**changed):
        page = await journal.list_executions(**(filters | changed))
        return [one.request_id for one in page.items], page.next_token

    newest, token = await listed()
    assert newest == ["r3", "r2", "r1"]
    assert await listed(after=token) == (["r0"], "")
    assert await listed(session_id="s0") == (["r2", "r0"], "")
    assert await listed(state=State.COMPLETE) == (["r2"], "")
    assert await listed(mode=Mode.CHAT) == (["r2", "r0"], "")
    assert await listed(mode=Mode.CHAT, limit=1, after=token) == (["r0"], "")
    assert await listed(mode=Mode.PLAN, session_id="s0") == ([], "")
    for wrong in ("r1", "-1", "1" * 19, "\u0663", "1.0"):
        with pytest.raises(InvalidRequest, match="page_token"):
            await listed(after=wrong)


@pytest.mark.sql_only
async def test_what_has_ended_is_forgotten_after_its_time_and_what_runs_is_not(journals):
    journal = await journals(retention_s=0.01)
    await admit(journal, "old")
    await journal.write(ended(record("old"), 1))
    await admit(journal, "live")
    await admit(journal, "given-up")
    await asyncio.sleep(0.05)
    await journal.release([execution("given-up")])
    await asyncio.sleep(0.05)
    await journal._purger.purge()
    for name in ("old", "given-up"):
        with pytest.raises(NotFound):
            await journal.timeline(execution(name))
    assert (await journal.get(execution("live"))).request_id == "live"


@pytest.mark.sql_only
async def test_an_entry_of_another_version_cannot_be_taken_up_from(journal, database_url):
    await admit(journal)
    with opened(database_url) as db:
        db.execute(text("UPDATE entries SET entry = :entry"), {"entry": b'["Later",{}]'})
    with pytest.raises(PreconditionFailed, match="cannot be resumed"):
        await journal.entries(execution("r"))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # a file has no connections
async def test_a_database_that_dropped_its_connections_is_used_again(journal, database_url):
    await admit(journal)
    await journal.get(execution("r"))
    with opened(database_url) as db:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = "
        db.execute(text(others + "current_database()"))
    await journal.write(happened(record(), 1))
    assert await sequences(journal, "r") == [1]


async def test_a_database_that_is_not_there_says_so():
    with pytest.raises(Unavailable, match="the journal's database does not answer"):
        await SqlJournal("postgresql://nobody@127.0.0.1:1/none").open()
    for url in ("mysql://x/y", "not a url", "sqlite://", "sqlite:///:memory:"):
        with pytest.raises(InvalidRequest, match="the journal's URL"):
            SqlJournal(url)
