"""What every journal keeps, for how long, and how much of it comes at once."""

import asyncio
import sqlite3
import threading
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import event, select, text

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from pagantic_common.domain.messages import Message, Role
from pagantic_common.testing.clock import FakeClock
from services.orchestrator.adapters.journal.schema import TABLES
from services.orchestrator.adapters.journal.sealing import sealing_of
from services.orchestrator.adapters.journal.stores import conversations
from services.orchestrator.adapters.journal.upkeep import purge as journal_purge
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.ports.journal import MAX_LISTED_CHARS, UsageTotal, Write
from tests.contract.test_journal import opened, totals_of
from tests.support.journal_records import NOW, TURN, admit, ended, happened, record
from tests.support.keys import execution, session

pytestmark = pytest.mark.payloads


SUMMARY = Message(Role.SYSTEM, "Summary of the conversation so far:\nThey met.")
PREPARED = Prepared(system_prompt="Be brief.", history=(SUMMARY, *(TURN * 3)[2:]), history_start=2, history_end=6)


async def prepare_a_run(journal):
    """Store a run that refers to messages of its conversation, which goes on afterwards."""
    await admit(journal, "before", session_id="s")
    await journal.write(ended(record("before", session_id="s"), 1, turn=TURN * 3))
    await admit(journal, session_id="s")
    await journal.write(Write(record(session_id="s"), entries=(PREPARED,), position=1))
    await admit(journal, "after", session_id="s")
    await journal.write(ended(record("after", session_id="s"), 1, turn=TURN))


async def test_the_history_of_a_run_is_read_back_exactly(journal):
    await prepare_a_run(journal)
    assert (await journal.entries(execution("r")))[1] == PREPARED


@pytest.mark.sql_only
async def test_the_history_of_a_run_is_kept_by_reference(journal, database_url):
    await prepare_a_run(journal)
    with opened(database_url) as db:
        stored = bytes(db.execute(text("SELECT entry FROM entries WHERE position = 1")).scalar_one())
    stored = sealing_of(journal._engine.dialect).open(stored, "entries.entry", DEFAULT_TENANT, "r", 1)
    assert b"They met." in stored
    assert b"hello" not in stored, "the conversation has it"
    with opened(database_url) as db:
        db.execute(text("DELETE FROM messages"))
    with pytest.raises(PreconditionFailed, match="'s' that the execution goes on from was deleted"):
        await journal.entries(execution("r"))


@pytest.mark.sql_only
async def test_all_that_is_old_is_forgotten_in_small_batches_also_behind_what_runs(journals, monkeypatch):
    monkeypatch.setattr(journal_purge, "PURGED_AT_ONCE", 4)
    journal = await journals(retention_s=0.01)
    await admit(journal, "head")
    for number in range(11):
        await admit(journal, f"r{number}")
        await journal.write(ended(record(f"r{number}"), 1))
    await asyncio.sleep(0.05)
    sizes = []
    forget = journal_purge.forget_old_executions
    monkeypatch.setattr(
        journal_purge, "forget_old_executions", lambda *given: sizes.append(forget(*given)) or sizes[-1]
    )
    journal._purger._at_once = 4
    await journal._purger.purge()
    assert sizes == [4, 4, 3, 0]
    listed = await journal.list_executions(
        tenant=DEFAULT_TENANT, limit=50, after="", session_id="", state=None, metadata={}
    )
    assert [one.request_id for one in listed.items] == ["head"]


@pytest.mark.sql_only
async def test_a_purge_that_fails_fails_no_caller_and_is_tried_again_smaller(journals, monkeypatch):
    asked = asyncio.Event()
    batches = []

    def stuck(_db, _oldest_s, limit):
        batches.append(limit)
        if len(batches) < 3:
            raise RuntimeError("canceling statement due to statement timeout")
        loop.call_soon_threadsafe(asked.set)
        return 0

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(journal_purge, "forget_old_executions", stuck)
    monkeypatch.setattr(journal_purge, "RETRY_S", 0.05)
    monkeypatch.setattr(journal_purge, "FIRST_PURGE_S", 0.0)
    journal = await journals()
    for number in range(20):
        await admit(journal, f"r{number}")
        await journal.write(ended(record(f"r{number}"), 1))
    await asyncio.wait_for(asked.wait(), 60)
    assert batches == [200, 100, 50]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # a file has one writer at a time
async def test_a_beat_does_not_wait_for_the_writer(journal):
    begun, go = threading.Event(), threading.Event()

    def slow(_db):
        begun.set()
        go.wait(60)

    writing = journal._group.submit(slow)
    await asyncio.to_thread(begun.wait, 5)
    before = (await journal.beat()).beats["local"]
    assert (await journal.beat()).beats["local"] == before + 1
    assert not writing.done()
    go.set()
    await writing


@pytest.mark.sql_only
async def test_writes_that_fail_are_told_until_one_succeeds_again(journal, monkeypatch):
    def full(*_given):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(journal._writes, "write_all", full)
        await admit(journal)
        assert journal.write_failure == ""
        with pytest.raises(Unavailable, match="disk is full") as failed:
            await journal.write(happened(record(), 1))
        assert failed.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
        assert "disk is full" in journal.write_failure
    await journal.beat()
    assert journal.write_failure == "", "a beat tries again"


@pytest.mark.sql_only
async def test_deleting_a_conversation_forgets_what_its_executions_said(journal, database_url):
    for name, fields in (("a", {"session_id": "s"}), ("b", {"session_id": "s"}), ("other", {"session_id": "t"})):
        await admit(journal, name, **fields)
    await admit(journal, "runs", session_id="s")
    await journal.write(ended(record("a", session_id="s"), 1, turn=TURN, used=UsageTotal("s", "m", 1, 10)))
    await journal.write(ended(record("other", session_id="t"), 1, turn=TURN))
    await journal.release([execution("b")])
    await journal.delete_session(session("s"))
    with opened(database_url) as db:
        left = [
            db.execute(select(TABLES.tables[name].c.request_id).order_by("request_id")).scalars().all()
            for name in ("executions", "entries", "events")
        ]
        assert left == [["other", "runs"], ["runs"], ["other"]]
        assert db.execute(text("SELECT session_id FROM messages GROUP BY 1")).scalars().all() == ["t"]
    assert await totals_of(journal, None) == [UsageTotal("", "m", 1, 10)]
    with pytest.raises(NotFound):
        await journal.delete_session(session("s"))


async def test_usage_of_deleted_conversations_stays_in_the_totals_of_tenants_models_and_subjects(journal):
    used = UsageTotal("", "m", 1, 10, 4, 3, 0.5)
    for name in ("", "s", "t", "kept"):
        for subject in ("", "web"):
            await journal.add_usage(replace(used, session_id=name, subject=subject))
    await journal.add_usage(replace(used, session_id="s", model="n"))
    await journal.add_usage(replace(used, session_id="s", tenant="beta"))
    for name in ("s", "t"):
        await journal.update_state(session(name), {"a": "1"}, ())
        await journal.delete_session(session(name))
    three = replace(used, requests=3, prompt_tokens=30, cached_prompt_tokens=12, output_tokens=9, cost_usd=1.5)
    assert await totals_of(journal, None) == [
        *(three, replace(three, subject="web"), replace(used, model="n")),
        *(replace(used, session_id="kept"), replace(used, session_id="kept", subject="web")),
    ]
    others = await journal.usage_totals(tenant="beta", limit=9, after="")
    assert others.items == [replace(used, session_id="s", tenant="beta")]


@pytest.mark.sql_only
async def test_conversations_have_a_retention_where_one_is_set(journals):
    clock = FakeClock(start=NOW)
    journal = await journals(session_retention_s=60.0, clock=clock)
    for name in ("old", "busy"):
        await admit(journal, name, session_id=name)
        await journal.write(ended(record(name, session_id=name), 1, turn=TURN))
    await admit(journal, "turn", session_id="busy", takes_turn=True)
    clock.advance(61)
    await journal.update_state(session("new"), {"a": "1"}, ())
    await journal._purger.purge()
    for name in ("busy", "new"):
        assert (await journal.get_session(session(name))).session_id == name
    with pytest.raises(NotFound):
        await journal.get_session(session("old"))
    assert (await journal.get(execution("old"))).response.content == "hello"


async def pages(read):
    """Return all items of a list that is read page by page, and the number of pages."""
    items, token, count = [], "", 0
    while True:
        page = await read(after=token)
        items += page.items
        count += 1
        if not (token := page.next_token):
            return items, count


async def test_lists_are_read_page_by_page_whole_and_each_item_once(journal):
    for number in range(10):
        name = f"r{number}"
        await admit(journal, name, session_id=f"s{number % 4}")
        used = UsageTotal(f"s{number % 4}", f"m/{number % 2}", 1, 1, subject=f"{number % 2}/ci")
        await journal.write(ended(record(name, session_id=f"s{number % 4}"), 1, turn=TURN, used=used))
    found, count = await pages(
        partial(journal.list_executions, tenant=DEFAULT_TENANT, limit=3, session_id="", state=None, metadata={})
    )
    assert ([one.request_id for one in found], count) == ([f"r{number}" for number in range(9, -1, -1)], 4)
    found, count = await pages(
        partial(journal.list_executions, tenant=DEFAULT_TENANT, limit=5, session_id="", state=None, metadata={})
    )
    assert count == 2, "no empty page comes last"
    found, count = await pages(partial(journal.list_sessions, tenant=DEFAULT_TENANT, limit=3))
    assert (sorted(one.session_id for one in found), count) == (["s0", "s1", "s2", "s3"], 2)
    found, count = await pages(
        partial(journal.usage_totals, tenant=DEFAULT_TENANT, session_id=None, model=None, limit=1)
    )
    assert [(one.session_id, one.model) for one in found] == [
        ("s0", "m/0"), ("s1", "m/1"), ("s2", "m/0"), ("s3", "m/1"),
    ]  # fmt: skip
    for wrong in ("nope", "inf/s", "0x1p0/a b", "1" * 400 + "/s"):
        with pytest.raises(InvalidRequest, match="page_token"):
            await journal.list_sessions(tenant=DEFAULT_TENANT, limit=1, after=wrong)
    for wrong in ("nope", "[]", '["s","m","\\ud800"]', '["s","m"]', '["s","m",1]', '["s","m","\\u0000"]'):
        with pytest.raises(InvalidRequest, match="page_token"):
            await journal.usage_totals(tenant=DEFAULT_TENANT, session_id=None, model=None, limit=1, after=wrong)


async def test_a_conversation_in_use_moves_to_the_front_and_no_other_is_left_out(journal):
    for name in ("a", "b", "c", "d"):
        await journal.update_state(session(name), {"x": "1"}, ())
    first = await journal.list_sessions(tenant=DEFAULT_TENANT, limit=2, after="")
    assert [one.session_id for one in first.items] == ["d", "c"]
    await journal.update_state(session("c"), {"x": "2"}, ())
    rest = await journal.list_sessions(tenant=DEFAULT_TENANT, limit=2, after=first.next_token)
    assert [one.session_id for one in rest.items] == ["b", "a"]


async def test_a_list_of_conversations_has_the_value_that_is_asked_for_unless_it_is_long(journal):
    most = MAX_LISTED_CHARS
    await journal.update_state(session("a"), {"title": '"A"', "other": "1"}, ())
    await journal.update_state(session("b"), {"title": "ü" * most, "other": "1"}, ())
    await journal.update_state(session("c"), {"title": "ü" * (most + 1)}, ())
    await journal.update_state(SessionKey("beta", "a"), {"title": '"of another"'}, ())

    async def states(key):
        listed = await journal.list_sessions(tenant=DEFAULT_TENANT, limit=9, after="", state_key=key)
        return {one.session_id: one.state for one in listed.items}

    assert await states("title") == {"a": {"title": '"A"'}, "b": {"title": "ü" * most}, "c": {}}
    assert await states("") == {"a": {}, "b": {}, "c": {}}


async def test_what_comes_at_once_of_a_timeline_and_a_conversation_is_bounded_in_bytes_too(journal):
    await admit(journal, session_id="s")
    await journal.write(happened(record(session_id="s"), *range(1, 8)))
    large = tuple(Message(Role.USER, f"{number}" * 100) for number in range(6))
    await journal.write(ended(record(session_id="s"), 8, turn=large))
    found, has_more = await journal.timeline_page(execution("r"), 0, 5, 10_000)
    assert ([one.sequence for one in found], has_more) == ([1, 2, 3, 4, 5], True)
    assert await journal.timeline_page(execution("r"), 8, 5, 10_000) == ([], False)
    found, has_more = await journal.timeline_page(execution("r"), 5, 3, 10_000)
    assert ([one.sequence for one in found], has_more) == ([6, 7, 8], False)
    assert len((await journal.timeline_page(execution("r"), 0, 5, 1))[0]) == 1
    positions, before = [], 0
    while True:
        found = await journal.get_session(session("s"), 4, before=before, max_bytes=250)
        positions.append((found.first_position, [message.content[0] for message in found.messages]))
        if not (before := found.first_position):
            break
    assert positions == [(4, ["4", "5"]), (2, ["2", "3"]), (0, ["0", "1"])]
    assert found.message_count == 6
    assert len((await journal.get_session(session("s"), 4, max_bytes=1)).messages) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # a file has one writer at a time
async def test_a_purge_that_takes_long_keeps_nobody_waiting(journal, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def slow(db, *_given):
        db.execute(text("DELETE FROM events WHERE request_id = 'old'"))
        begun.set()
        go.wait(60)
        return 0

    monkeypatch.setattr(journal_purge, "forget_old_executions", slow)
    purging = asyncio.create_task(journal._purger.purge())
    await asyncio.to_thread(begun.wait, 5)
    await admit(journal)
    await journal.write(ended(record(), 1))
    assert (await journal.get(execution("r"))).response.content == "hello"
    await journal.beat()
    assert not purging.done()
    go.set()
    await purging


async def test_of_a_long_conversation_the_newest_messages_are_read_with_their_position(journal):
    await admit(journal, session_id="s")
    large = tuple(Message(Role.USER, f"{number}" * 100) for number in range(6))
    await journal.write(ended(record(session_id="s"), 1, turn=large))
    assert await journal.history(session("s")) == (0, large)
    assert await journal.history(session("s"), 250) == (4, large[4:])
    assert await journal.history(session("s"), 1) == (5, large[5:])
    assert await journal.history(session("s"), 10_000) == (0, large)
    assert await journal.history(session("s"), 10_000, limit=5) == (1, large[1:])
    assert await journal.history(session("s"), 250, limit=5) == (4, large[4:])


@pytest.mark.sql_only
async def test_a_turn_that_ends_while_a_conversation_is_read_moves_no_position(journal, database_url, monkeypatch):
    await admit(journal, session_id="s")
    large = tuple(Message(Role.USER, f"{number}" * 100) for number in range(6))
    await journal.write(ended(record(session_id="s"), 1, turn=large))
    within = conversations.read_within

    def meanwhile(*given):
        found = within(*given)
        with opened(database_url) as db:
            copied = "(tenant, session_id, position, message) SELECT tenant, session_id, 6, message FROM messages"
            db.execute(text(f"INSERT INTO messages {copied} WHERE position = 0"))
        return found

    monkeypatch.setattr(conversations, "read_within", meanwhile)
    assert await journal.history(session("s"), 250) == (4, large[4:])


@pytest.mark.sql_only
async def test_a_turn_is_added_without_counting_the_conversation(journal):
    """What every caller's writes wait for takes as long however long one conversation is."""
    await admit(journal, session_id="s")
    await journal.write(ended(record(session_id="s"), 1, turn=TURN))
    statements = []
    event.listen(journal._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    await admit(journal, "r2", session_id="s")
    await journal.write(ended(record("r2", session_id="s"), 1, turn=TURN))
    assert [message.content for message in (await journal.history(session("s")))[1]] == ["hi", "hello"] * 2
    assert not [statement for statement in statements if "count(" in statement.lower()]
    assert [statement for statement in statements if "max(" in statement.lower()]
