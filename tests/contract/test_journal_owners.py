"""Contract of the journal: one process at a time has a name, and writes only to what it runs."""

import asyncio
import time
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from pagantic_common.domain.errors import (
    Conflict,
    PreconditionFailed,
    Unavailable,
)
from services.orchestrator.adapters.journal.database import check_url
from services.orchestrator.adapters.journal.upkeep import owner_lock
from services.orchestrator.adapters.journal.upkeep.owner_lock import OwnerLock
from services.orchestrator.core.execution.wait import Decision, Resolution, Signal, Wait, WaitKind
from services.orchestrator.core.model.request import Mode
from tests.support.journal_records import NOW, admit, ended, happened, record, sequences
from tests.support.keys import execution


async def test_one_process_at_a_time_is_an_owner(journals, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.3)
    first = await journals("a")
    await admit(first)
    with pytest.raises(PreconditionFailed, match="another orchestrator runs as 'a'"):
        await journals("a")
    assert not (await first.get(execution("r"))).is_interrupted
    await first.close()
    again = await journals("a")
    assert (await again.get(execution("r"))).is_interrupted


def cut_locks(url):
    """End the connections that hold owners' locks, as a failover does."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database ON database = pg_database.oid"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )


def wait_for_no_locks(url):
    """Wait until the server has seen that the connections of released locks are closed."""
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchone():
            time.sleep(0.01)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_an_owner_takes_its_lock_again_after_a_failover(journals, database_url, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.3)
    first = await journals("a")
    cut_locks(database_url)
    assert (await first.beat()).beats["a"] == 2
    with pytest.raises(PreconditionFailed, match="another orchestrator runs as 'a'"):
        await journals("a")


def test_a_lock_that_was_out_of_reach_for_long_may_be_refused_once(postgres, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.1)
    engine = create_engine(check_url(postgres))
    lock, taken = OwnerLock(engine, "a"), iter([OperationalError("", None, Exception()), False, True])

    def take():
        lock._session, outcome = None, next(taken)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(lock, "_take_session", take)
    lock.release()
    with pytest.raises(OperationalError):
        lock.hold()
    time.sleep(0.2)
    with pytest.raises(Unavailable):
        lock.hold()
    lock.hold()
    engine.dispose()


def test_a_lock_is_asked_for_again_until_it_is_held_and_after_each_new_connection(postgres, monkeypatch):
    engine = create_engine(check_url(postgres))
    lock, asked = OwnerLock(engine, "a"), []
    lock.hold()
    lock.release()
    other = OwnerLock(engine, "a")
    for _ in range(3):
        with pytest.raises(Unavailable, match="not yet taken again"):
            lock.hold_if_doubtful()
    other.release()
    wait_for_no_locks(postgres)
    hold = lock._hold

    def hold_while_another_one_connects():
        asked.append(hold())
        if len(asked) == 1:
            engine.connect().invalidate()
            engine.connect().close()

    monkeypatch.setattr(lock, "_hold", hold_while_another_one_connects)
    for _ in range(3):
        lock.hold_if_doubtful()
    assert len(asked) == 2
    lock.release()
    engine.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_an_owner_whose_name_was_taken_is_told_so_with_its_beats(journals, database_url, monkeypatch):
    monkeypatch.setattr(owner_lock, "OWNER_TIMEOUT_S", 0.3)
    first = await journals("a")
    cut_locks(database_url)
    await journals("a")
    with pytest.raises(Unavailable, match="lost"):
        await first.beat()
    with pytest.raises(Unavailable, match="nothing is written"):
        await admit(first, "late")
    await asyncio.sleep(0.4)
    with pytest.raises(PreconditionFailed, match="another orchestrator runs as 'a'"):
        await first.beat()


async def test_what_an_owner_ran_is_interrupted_when_it_comes_back_and_one_may_claim_it(journals):
    first = await journals("a")
    await admit(first, "mine", mode=Mode.PLAN)
    await admit(first, "done", mode=Mode.PLAN)
    await first.write(ended(record("done", mode=Mode.PLAN)))
    other = await journals("b")
    assert await other.interrupted(with_plans=True) == []
    assert not await other.claim(execution("mine"))
    await first.close()
    again = await journals("a")
    assert await again.interrupted(with_plans=True) == [execution("mine")]
    assert sorted(await asyncio.gather(again.claim(execution("mine")), other.claim(execution("mine")))) == [False, True]


async def test_an_owner_that_was_taken_for_dead_cannot_write_to_what_was_taken_over(journals):
    dead, alive = await journals("a"), await journals("b")
    await admit(dead)
    await dead.write(happened(record(), 1))
    beats = (await alive.beat()).beats
    assert not await alive.interrupt("a", beats["a"] - 1), "it has beaten since"
    await dead.write(happened(record(), 2))
    assert await alive.interrupt("a", beats["a"])
    assert not await alive.interrupt("a", beats["a"]), "only one takes over"
    with pytest.raises(Conflict, match="another orchestrator's"):
        await dead.write(happened(record(), 3))
    assert await alive.claim(execution("r"))
    await alive.write(happened(record(), 3))
    with pytest.raises(Conflict):
        await dead.write(ended(record(), 4))
    await alive.write(ended(record(), 4))
    with pytest.raises(Conflict):
        await alive.write(happened(record(), 5))
    assert await sequences(alive, "r") == [1, 2, 3, 4]


async def test_beats_count_up_and_bring_what_is_to_be_cancelled(journals):
    one, other = await journals("a"), await journals("b")
    await admit(one)
    before = await one.beat()
    assert before.to_cancel == ()
    await other.request_cancel(execution("r"))
    after = await one.beat()
    assert after.to_cancel == (execution("r"),)
    assert after.beats["a"] == before.beats["a"] + 1
    assert (await other.beat()).to_cancel == ()


CALLS = ("c1", "c2")


async def waiting_for(journal, request_id="r"):
    """Admit an execution two of whose calls wait for approval, and return the time at which they expire."""
    await admit(journal, request_id)
    until = NOW + timedelta(days=7)
    for call_id in CALLS:
        asked = Wait(request_id, call_id, WaitKind.APPROVAL, NOW, until, "pay", "why", "{}")
        await journal.begin_wait(execution(request_id), asked)
    return until


async def test_a_parked_execution_is_nobodys_until_it_is_claimed(journals):
    first = await journals("a")
    until = await waiting_for(first)
    key = execution("r")
    assert await first.park(key, until, CALLS)
    assert not await first.park(key, until, CALLS), "it runs no more"
    found = await first.get(key)
    assert (found.is_interrupted, found.wakes_at) == (False, until)
    with pytest.raises(Conflict):
        await first.write(happened(record(), 1))
    await first.close()
    second = await journals("a")
    assert (await second.get(key)).wakes_at == until, "its owner's end and start leave it parked"
    assert await second.interrupted(with_plans=True) == []
    assert await second.due(9) == []
    assert await second.claim(key)
    assert not await second.claim(key)
    found = await second.get(key)
    assert (found.wakes_at, found.is_interrupted) == (None, False)
    assert found.parked_s >= 0
    await second.write(happened(record(), 1))


async def test_a_decision_makes_a_parked_execution_due_and_prevents_its_parking(journals):
    journal = await journals("a")
    until, key = await waiting_for(journal), execution("r")
    assert await journal.park(key, until, CALLS)
    await journal.resolve_wait(key, "c1", Resolution(Decision.APPROVED, NOW))
    assert await journal.due(9) == [key]
    assert await journal.claim(key)
    assert await journal.due(9) == []
    assert not await journal.park(key, until, CALLS), "one of the calls is decided"
    assert await journal.park(key, until, CALLS[1:])
    assert not await journal.park(execution("none"), until, CALLS)


async def test_a_kept_signal_prevents_the_parking_and_makes_a_parked_execution_due_only_if_it_is_expected(journals):
    journal = await journals("a")
    key = execution("r")
    await admit(journal, "r")
    until = NOW + timedelta(days=7)
    await journal.begin_wait(key, Wait("r", "plan/paid", WaitKind.SIGNAL, NOW, until, "paid"))
    await journal.add_signal(key, Signal("1", "other", "null", b"d" * 32))
    assert await journal.park(key, until, ["plan/paid"])
    await journal.add_signal(key, Signal("2", "other", "null", b"d" * 32))
    assert await journal.due(9) == [], "nobody waits for this signal"
    await journal.add_signal(key, Signal("3", "paid", "null", b"d" * 32))
    assert await journal.due(9) == [key]
    assert await journal.claim(key)
    assert not await journal.park(key, until, ["plan/paid"]), "the signal can be taken"


async def test_parked_executions_are_due_in_the_order_of_their_times(journals):
    journal = await journals("a")
    for number in (3, 1, 2):
        await waiting_for(journal, f"r{number}")
        assert await journal.park(execution(f"r{number}"), NOW - timedelta(seconds=9 - number), CALLS)
    assert [key.request_id for key in await journal.due(2)] == ["r1", "r2"]
    assert await journal.due(9, without={"default"}) == []
    assert len(await journal.due(9, without={"other"})) == len(await journal.due(9, without=set()))
    assert [key.request_id for key in await journal.due(9)] == ["r1", "r2", "r3"]
