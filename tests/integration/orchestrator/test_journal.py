"""The journal's group commit."""

import asyncio
import sqlite3

import pytest

from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.sqlite_journal import SqliteJournal
from services.orchestrator.core.events import Event
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.request import Mode
from services.orchestrator.core.run import Transition
from services.orchestrator.ports import ExecutionRecord

NOW = SystemClock().now()


def record(request_id):
    return ExecutionRecord(
        request_id=request_id,
        session_id="",
        trace_id="0" * 32,
        mode=Mode.CHAT,
        started_at=NOW,
        state=State.INIT,
        entered_at=NOW,
        attempt=1,
        fingerprint="f",
    )


def event(sequence):
    return Event(
        correlation=CorrelationContext(request_id="x"),
        sequence=sequence,
        timestamp=NOW,
        layer="orchestrator",
        action="lifecycle.transition",
        attempt=1,
        payload=Transition(None, State.INIT, 1, "admitted"),
    )


async def sequences(journal, request_id):
    return [one.sequence for one in await journal.timeline(request_id)]


async def test_a_write_that_fails_is_undone_alone(tmp_path):
    journal = SqliteJournal(tmp_path / "journal.sqlite3")
    await journal.open()
    names = [f"r{number}" for number in range(20)]
    assert await asyncio.gather(*(journal.admit(record(name)) for name in names)) == [None] * 20
    await journal.append(event(1), record("r7"))
    found = await asyncio.gather(*(journal.append(event(1), record(name)) for name in names), return_exceptions=True)
    assert [name for name, error in zip(names, found, strict=True) if error is not None] == ["r7"]
    assert isinstance(found[7], sqlite3.IntegrityError)
    for name in names:
        assert await sequences(journal, name) == [1]
    await journal.close()


async def test_the_writes_of_one_caller_keep_their_order_and_closing_writes_them_all(tmp_path):
    path = tmp_path / "journal.sqlite3"
    journal = SqliteJournal(path)
    await journal.open()
    await journal.admit(record("r"))
    writes = [asyncio.create_task(journal.append(event(number), record("r"))) for number in range(1, 50)]
    writes[10].cancel()
    await asyncio.sleep(0)
    await journal.close()
    with pytest.raises(asyncio.CancelledError):
        await writes[10]
    again = SqliteJournal(path)
    await again.open()
    assert await sequences(again, "r") == [number for number in range(1, 50) if number != 11]
    assert (await again.get("r")).is_interrupted
    await again.close()


async def test_a_transaction_that_cannot_be_committed_is_told_to_all_that_share_it(tmp_path):
    journal = SqliteJournal(tmp_path / "journal.sqlite3")
    await journal.open()
    await journal.admit(record("r"))
    journal._db.execute("PRAGMA query_only=ON")
    found = await asyncio.gather(
        *(journal.append(event(number), record("r")) for number in (1, 2, 3)), return_exceptions=True
    )
    assert all(isinstance(error, sqlite3.OperationalError) for error in found)
    journal._db.execute("PRAGMA query_only=OFF")
    await journal.append(event(1), record("r"))
    assert await sequences(journal, "r") == [1]
    await journal.close()
