"""Journal in a database by URL: a SQLite file of one orchestrator, or a PostgreSQL that several share.

One thread writes and one reads. Writes that wait while others are written share the next transaction (group commit);
one that fails is undone alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, OperationalError

from pagantic_common.domain.errors import InvalidRequest, Unavailable
from pagantic_common.domain.messages import Message
from services.orchestrator.adapters import journal_reads as reads
from services.orchestrator.adapters.journal_schema import migrate
from services.orchestrator.adapters.journal_writes import Admission, Writes
from services.orchestrator.core.events import Event
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.memory import Summary
from services.orchestrator.core.replay import Admitted, Entry
from services.orchestrator.core.request import Mode
from services.orchestrator.ports.journal import Durability, ExecutionRecord, Pulse, SessionRecord, UsageTotal, Write

ResultT = TypeVar("ResultT")

PURGE_INTERVAL_S = 60.0
CONNECT_TIMEOUT_S = 5
BUSY_TIMEOUT_S = 10.0
LINGER_S = 0.005  # how long what can wait is kept for a transaction that something else begins
_OPENING = Lock()  # the migration tool has one context per process, and a file is given its write-ahead log once
_READING = {"is_reading": True}


_Work = Admission | Write | Callable[[Connection], Any]


class SqlJournal:
    """The journal of one owner. What that owner ran before is interrupted when it is opened."""

    def __init__(
        self,
        url: str,
        *,
        owner: str = "local",
        retention_s: float = 86_400.0,
        durability: Durability = Durability.POWER,
    ) -> None:
        self._url = check_url(url)
        self._owner = owner
        self._durability = durability
        self._retention_s = retention_s
        self._purged_s = 0.0
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-writer")
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-reader")
        self._writes = Writes(owner, self._url.get_dialect()())
        self._waiting: list[tuple[_Work, asyncio.Future[Any]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._engine: Engine
        self._is_open = False

    async def open(self) -> None:
        """Connect and bring the tables up to date. Raises Unavailable when the database cannot be reached."""
        await asyncio.get_running_loop().run_in_executor(self._writing, self._open)

    async def close(self) -> None:
        """Disconnect, after what still waits to be written; nobody waits for this owner's beats any more."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Unavailable):
                await self._commit(lambda db: self._writes.interrupt(db, self._owner))
        self._begin_writing()
        while self._writer is not None:
            await self._writer
        self._writing.shutdown()
        self._reading.shutdown()
        self._engine.dispose()

    async def admit(
        self, record: ExecutionRecord, admitted: Admitted, *, takes_turn: bool = False
    ) -> ExecutionRecord | None:
        """See the port."""
        found: ExecutionRecord | None = await self._commit(Admission(record, admitted, takes_turn))
        return found

    async def write(self, write: Write, *, can_wait: bool = False) -> None:
        """See the port."""
        await self._commit(write, can_wait=can_wait)

    async def take_turn(self, session_id: str, request_id: str) -> bool:
        """See the port."""
        return bool(await self._commit(lambda db: self._writes.take_turn(db, session_id, request_id)))

    async def claim(self, request_id: str) -> bool:
        """See the port."""
        return bool(await self._commit(lambda db: self._writes.claim(db, request_id)))

    async def request_cancel(self, request_id: str) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.request_cancel(db, request_id))

    async def beat(self) -> Pulse:
        """See the port."""
        pulse: Pulse = await self._commit(self._writes.beat)
        return pulse

    async def interrupt(self, owner: str) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.interrupt(db, owner))

    async def release(self, request_ids: Sequence[str]) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.release(db, request_ids))

    async def update_state(self, session_id: str, values: Mapping[str, str], removed: Sequence[str]) -> SessionRecord:
        """See the port."""
        now_s = time.time()
        updated: SessionRecord = await self._commit(
            lambda db: self._writes.update_state(db, session_id, values, removed, now_s)
        )
        return updated

    async def put_summary(self, session_id: str, summary: Summary) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.put_summary(db, session_id, summary))

    async def get_summary(self, session_id: str) -> Summary | None:
        """See the port."""
        return await self._read(lambda db: reads.get_summary(db, session_id))

    async def delete_session(self, session_id: str) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.delete_session(db, session_id))

    async def get(self, request_id: str) -> ExecutionRecord:
        """See the port."""
        return await self._read(lambda db: reads.get(db, request_id))

    async def list_executions(
        self, *, limit: int, before: str, session_id: str, state: State | None
    ) -> list[ExecutionRecord]:
        """See the port."""
        return await self._read(
            lambda db: reads.list_executions(db, limit=limit, before=before, session_id=session_id, state=state)
        )

    async def interrupted(self, mode: Mode) -> list[str]:
        """See the port."""
        return await self._read(lambda db: reads.interrupted(db, mode))

    async def timeline(self, request_id: str, after: int = 0) -> list[Event]:
        """See the port."""
        return await self._read(lambda db: reads.timeline(db, request_id, after))

    async def entries(self, request_id: str) -> list[Entry]:
        """See the port."""
        return await self._read(lambda db: reads.entries(db, request_id))

    async def history(self, session_id: str) -> tuple[Message, ...]:
        """See the port."""
        return await self._read(lambda db: reads.history(db, session_id))

    async def get_session(self, session_id: str) -> SessionRecord:
        """See the port."""
        return await self._read(lambda db: reads.get_session(db, session_id))

    async def list_sessions(self, *, limit: int, after: int) -> list[SessionRecord]:
        """See the port."""
        return await self._read(lambda db: reads.list_sessions(db, limit, after))

    async def usage_totals(self, *, session_id: str | None, model: str | None) -> list[UsageTotal]:
        """See the port."""
        return await self._read(lambda db: reads.usage_totals(db, session_id, model))

    # ---- threads and transactions ---------------------------------------------------------------------------------

    async def _commit(self, work: _Work, *, can_wait: bool = False) -> Any:
        """Do work in the next transaction, which what can wait does not begin; returns when that is committed."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((work, done))
        if not can_wait:
            self._begin_writing()
        elif self._writer is None and self._timer is None:
            self._timer = loop.call_later(LINGER_S, self._begin_writing)
        return await done

    def _begin_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is None and self._waiting:
            self._writer = asyncio.create_task(self._write_groups())

    async def _write_groups(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            works = [work for work, _ in group]
            outcomes: list[Any]
            try:
                outcomes = await loop.run_in_executor(self._writing, self._write_group, works)
            except Exception as error:  # noqa: BLE001 - each caller is told
                outcomes = [_told(error)] * len(group)
            for (_, done), outcome in zip(group, outcomes, strict=True):
                if done.done():  # its caller has gone
                    continue
                if isinstance(outcome, Exception):
                    done.set_exception(outcome)
                else:
                    done.set_result(outcome)
        self._writer = None

    def _write_group(self, works: Sequence[_Work]) -> list[Any]:
        """Do the works in one transaction; returns what each returned, or the exception that undid it alone."""
        try:
            with self._engine.begin() as db:
                self._purge(db, time.time())
                return self._write_together(db, works)
        except Exception:  # noqa: BLE001 - one of them fails: each for itself tells which
            with self._engine.begin() as db:
                return [self._write_one(db, work) for work in works]

    def _write_together(self, db: Connection, works: Sequence[_Work]) -> list[Any]:
        admissions = [work for work in works if isinstance(work, Admission)]
        if any(one.takes_turn for one in admissions):
            raise _NotTogetherError
        if admissions and self._writes.admit_all(db, admissions) != len(admissions):
            raise _NotTogetherError
        if writes := [work for work in works if isinstance(work, Write)]:
            self._writes.write_all(db, writes)
        return [None if isinstance(work, Admission | Write) else work(db) for work in works]

    def _write_one(self, db: Connection, work: _Work) -> Any:
        try:
            with db.begin_nested():
                return self._do(db, work)
        except Exception as error:
            if db.invalidated:
                raise
            return _told(error)

    def _do(self, db: Connection, work: _Work) -> Any:
        match work:
            case Admission():
                return self._writes.admit(db, work)
            case Write():
                return self._writes.write_all(db, [work])
            case _:
                return work(db)

    async def _read(self, work: Callable[[Connection], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read_now, work)

    def _read_now(self, work: Callable[[Connection], ResultT]) -> ResultT:
        try:
            with self._engine.execution_options(**_READING).connect() as db:
                return work(db)
        except OperationalError as error:
            raise _told(error) from None

    def _purge(self, db: Connection, now_s: float) -> None:
        if now_s - self._purged_s >= PURGE_INTERVAL_S:
            self._purged_s = now_s
            self._writes.purge(db, now_s - self._retention_s)

    def _open(self) -> None:
        is_sqlite = self._url.get_backend_name() == "sqlite"
        if is_sqlite and self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        self._engine = create_engine(
            self._url,
            pool_size=2,
            pool_pre_ping=not is_sqlite,
            connect_args={"timeout": BUSY_TIMEOUT_S} if is_sqlite else {"connect_timeout": CONNECT_TIMEOUT_S},
        )
        event.listen(self._engine, "connect", self._set_up_sqlite if is_sqlite else self._set_up_postgresql)
        if is_sqlite:
            event.listen(self._engine, "begin", _begin_sqlite)
        try:
            with _OPENING, self._engine.begin() as db:
                migrate(db)
                # Rows of before there were owners have none.
                for owner in (self._owner, ""):
                    self._writes.interrupt(db, owner)
                self._writes.beat(db)
            self._is_open = True
        except OperationalError as error:
            raise _told(error) from None
        finally:
            if not self._is_open:
                self._engine.dispose()

    def _set_up_sqlite(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # SQLAlchemy begins and ends transactions, not the driver
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if self._durability is Durability.POWER else 'NORMAL'}")

    def _set_up_postgresql(self, connection: Any, _record: object) -> None:
        if self._durability is Durability.PROCESS:
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute("SET synchronous_commit TO off")
            connection.commit()


class _NotTogetherError(Exception):
    """An admission of the group may have to be refused."""


def check_url(url: str) -> URL:
    """Return a database's URL with the driver that reaches it; raises InvalidRequest for one that is none."""
    try:
        found = make_url(url)
    except ArgumentError:
        raise InvalidRequest("the journal's URL is no database URL: sqlite:///PATH or postgresql://…") from None
    match found.get_backend_name():
        case "sqlite":
            return found.set(drivername="sqlite+pysqlite")
        case "postgresql" | "postgres":
            return found.set(drivername="postgresql+psycopg")
        case other:
            raise InvalidRequest(f"the journal's URL is of {other!r}: it must be sqlite or postgresql")


def _begin_sqlite(db: Connection) -> None:
    # A writer that began by reading could not wait for another: it would be refused at once.
    db.exec_driver_sql("BEGIN" if db.get_execution_options().keys() & _READING else "BEGIN IMMEDIATE")


def _told(error: Exception) -> Exception:
    """Return what a caller is told of a database that does not answer; nothing of its statement."""
    if isinstance(error, OperationalError):
        return Unavailable(f"the journal's database does not answer: {str(error.orig).splitlines()[0]}")
    return error
