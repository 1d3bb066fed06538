"""Journal in a SQLite file: one writer thread, write-ahead log. Payloads are stored as the protos that clients get."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.codec.messages import message_from_proto, message_to_proto
from pagantic_common.domain.errors import NotFound
from pagantic_common.domain.messages import Message
from services.orchestrator.convert.event import event_from_proto, event_to_proto
from services.orchestrator.convert.response import response_from_proto, response_to_proto
from services.orchestrator.core.events import Event
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.request import Mode
from services.orchestrator.ports import ExecutionRecord, SessionRecord

ResultT = TypeVar("ResultT")

PURGE_INTERVAL_S = 60.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS executions (
    ordinal INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL, trace_id TEXT NOT NULL, mode TEXT NOT NULL,
    started_at REAL NOT NULL, state TEXT NOT NULL, entered_at REAL NOT NULL, attempt INTEGER NOT NULL,
    fingerprint TEXT NOT NULL, total_steps INTEGER NOT NULL, last_step TEXT NOT NULL, last_error BLOB, response BLOB,
    interrupted INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS executions_by_session ON executions (session_id, ordinal);
CREATE TABLE IF NOT EXISTS events (
    request_id TEXT NOT NULL, sequence INTEGER NOT NULL, event BLOB NOT NULL, PRIMARY KEY (request_id, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (session_id TEXT PRIMARY KEY, created_at REAL NOT NULL, updated_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, position INTEGER NOT NULL, message BLOB NOT NULL,
    PRIMARY KEY (session_id, position)
) WITHOUT ROWID;
"""
_COLUMNS = (
    "request_id, session_id, trace_id, mode, started_at, state, entered_at, attempt, fingerprint, total_steps, "
    "last_step, last_error, interrupted"
)


class SqliteJournal:
    """One file, used by one orchestrator. Executions that were live when it is opened were interrupted.

    Writes that wait while others are written share the next transaction (group commit); one that fails is undone alone.
    """

    def __init__(self, path: Path, *, retention_s: float = 86_400.0) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._path = path
        self._retention_s = retention_s
        self._purged_s = 0.0
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._db: sqlite3.Connection

    async def open(self) -> None:
        """Create or open the file."""
        await self._do(self._open)

    async def close(self) -> None:
        """Close the file, after what still waits to be written."""
        if self._writer is not None:
            await self._writer
        await self._do(self._db.close)
        self._thread.shutdown()

    async def admit(self, record: ExecutionRecord) -> ExecutionRecord | None:
        """Store a new execution and return None, or return the one that has the id already."""
        return await self._commit(lambda: self._admit(record))

    async def append(self, event: Event, record: ExecutionRecord) -> None:
        """Store an event and where the execution stands after it."""
        await self._commit(lambda: self._write([event], record, ()))

    async def finish(self, events: Sequence[Event], record: ExecutionRecord, turn: Sequence[Message]) -> None:
        """Store the last events, the response, and what the conversation gains, all or nothing."""
        await self._commit(lambda: self._write(events, record, turn))

    async def get(self, request_id: str) -> ExecutionRecord:
        """Return an execution. Raises NotFound."""
        return await self._do(lambda: self._get(request_id))

    async def list_executions(
        self, *, limit: int, before: str, session_id: str, state: State | None
    ) -> list[ExecutionRecord]:
        """Return executions, newest first, without responses; `before` is the id of the last one seen."""
        return await self._do(lambda: self._list(limit, before, session_id, state))

    async def timeline(self, request_id: str) -> list[Event]:
        """Return the stored events in sequence. Raises NotFound."""
        return await self._do(lambda: self._timeline(request_id))

    async def history(self, session_id: str) -> tuple[Message, ...]:
        """Return a conversation's messages, oldest first; empty when there is none."""
        return await self._do(lambda: self._history(session_id))

    async def get_session(self, session_id: str) -> SessionRecord:
        """Return a conversation. Raises NotFound."""
        return await self._do(lambda: self._get_session(session_id))

    async def list_sessions(self, *, limit: int, after: int) -> list[SessionRecord]:
        """Return conversations without messages, last used first, skipping the first `after`."""
        return await self._do(lambda: self._list_sessions(limit, after))

    async def delete_session(self, session_id: str) -> None:
        """Remove a conversation. Raises NotFound."""
        await self._do(lambda: self._delete_session(session_id))

    async def _commit(self, work: Callable[[], ResultT]) -> ResultT:
        """Do work in the next transaction; returns when that is committed."""
        done: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_groups())
        return await done

    async def _write_groups(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            works = [work for work, _ in group]
            try:
                outcomes = await self._do(lambda works=works: self._write_group(works))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - each caller is told
                outcomes = [error] * len(group)
            for (_, done), outcome in zip(group, outcomes, strict=True):
                if done.done():  # its caller has gone
                    continue
                if isinstance(outcome, Exception):
                    done.set_exception(outcome)
                else:
                    done.set_result(outcome)
        self._writer = None

    def _write_group(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do the works in one transaction; returns what each returned, or the exception that undid it."""
        self._purge(time.time())
        outcomes: list[Any] = []
        self._db.execute("BEGIN")
        try:
            for work in works:
                self._db.execute("SAVEPOINT work")
                try:
                    outcomes.append(work())
                except Exception as error:  # noqa: BLE001 - the others are kept
                    self._db.execute("ROLLBACK TO work")
                    outcomes.append(error)
                self._db.execute("RELEASE work")
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return outcomes

    async def _do(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA foreign_keys=ON")
        self._db.executescript(_SCHEMA)
        # The response is stored with the terminal state, so an execution without one was live when its process ended.
        self._db.execute("UPDATE executions SET interrupted = 1 WHERE response IS NULL")

    def _purge(self, now_s: float) -> None:
        """Forget executions that ended, or were interrupted, more than the retention ago; looked at each minute."""
        if now_s - self._purged_s < PURGE_INTERVAL_S:
            return
        self._purged_s = now_s
        oldest_s = now_s - self._retention_s
        self._db.execute("BEGIN")
        try:
            self._db.execute(
                "DELETE FROM events WHERE request_id IN (SELECT request_id FROM executions "
                "WHERE entered_at < ? AND (interrupted OR response IS NOT NULL))",
                (oldest_s,),
            )
            self._db.execute(
                "DELETE FROM executions WHERE entered_at < ? AND (interrupted OR response IS NOT NULL)", (oldest_s,)
            )
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def _admit(self, record: ExecutionRecord) -> ExecutionRecord | None:
        cursor = self._db.execute(
            "INSERT OR IGNORE INTO executions (request_id, session_id, trace_id, mode, started_at, state, entered_at, "
            "attempt, fingerprint, total_steps, last_step) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                record.request_id,
                record.session_id,
                record.trace_id,
                record.mode,
                record.started_at.timestamp(),
                record.state,
                record.entered_at.timestamp(),
                record.attempt,
                record.fingerprint,
                record.total_steps,
                record.last_step,
            ),
        )
        return None if cursor.rowcount else self._get(record.request_id)

    def _write(self, events: Sequence[Event], record: ExecutionRecord, turn: Sequence[Message]) -> None:
        last_error = failure_to_proto(record.last_failure).SerializeToString() if record.last_failure else None
        response = response_to_proto(record.response).SerializeToString() if record.response else None
        self._db.executemany(
            "INSERT INTO events VALUES (?,?,?)",
            [(record.request_id, event.sequence, event_to_proto(event).SerializeToString()) for event in events],
        )
        self._db.execute(
            "UPDATE executions SET state=?, entered_at=?, attempt=?, total_steps=?, last_step=?, last_error=?, "
            "response=? WHERE request_id=?",
            (
                record.state,
                record.entered_at.timestamp(),
                record.attempt,
                record.total_steps,
                record.last_step,
                last_error,
                response,
                record.request_id,
            ),
        )
        if turn:
            self._add_turn(record.session_id, turn, events[-1].timestamp.timestamp())

    def _add_turn(self, session_id: str, turn: Sequence[Message], now: float) -> None:
        self._db.execute(
            "INSERT INTO sessions VALUES (?,?,?) ON CONFLICT (session_id) DO UPDATE SET updated_at=excluded.updated_at",
            (session_id, now, now),
        )
        (start,) = self._db.execute("SELECT count(*) FROM messages WHERE session_id=?", (session_id,)).fetchone()
        rows = [
            (session_id, start + index, message_to_proto(message).SerializeToString())
            for index, message in enumerate(turn)
        ]
        self._db.executemany("INSERT INTO messages VALUES (?,?,?)", rows)

    def _get(self, request_id: str) -> ExecutionRecord:
        row = self._db.execute(
            f"SELECT {_COLUMNS}, response FROM executions WHERE request_id=?",  # noqa: S608 - a constant
            (request_id,),
        ).fetchone()
        if row is None:
            raise NotFound(f"no execution has request_id {request_id!r}")
        response = None if row[-1] is None else response_from_proto(execution_pb2.SystemResponse.FromString(row[-1]))
        return replace(_record(row), response=response)

    def _list(self, limit: int, before: str, session_id: str, state: State | None) -> list[ExecutionRecord]:
        conditions, values = ["1"], list[Any]()
        if before:
            conditions.append("ordinal < (SELECT ordinal FROM executions WHERE request_id=?)")
            values.append(before)
        if session_id:
            conditions.append("session_id=?")
            values.append(session_id)
        if state is not None:
            conditions.append("state=?")
            values.append(state)
        query = f"SELECT {_COLUMNS} FROM executions WHERE {' AND '.join(conditions)} ORDER BY ordinal DESC LIMIT ?"  # noqa: S608 - constants
        return [_record(row) for row in self._db.execute(query, (*values, limit))]

    def _timeline(self, request_id: str) -> list[Event]:
        self._get(request_id)
        rows = self._db.execute("SELECT event FROM events WHERE request_id=? ORDER BY sequence", (request_id,))
        return [event_from_proto(event_pb2.ExecutionEvent.FromString(event)) for (event,) in rows]

    def _history(self, session_id: str) -> tuple[Message, ...]:
        rows = self._db.execute("SELECT message FROM messages WHERE session_id=? ORDER BY position", (session_id,))
        return tuple(message_from_proto(message_pb2.Message.FromString(message)) for (message,) in rows)

    def _get_session(self, session_id: str) -> SessionRecord:
        row = self._db.execute("SELECT * FROM sessions WHERE session_id=?", (session_id,)).fetchone()
        if row is None:
            raise NotFound(f"no session has id {session_id!r}")
        messages = self._history(session_id)
        return SessionRecord(session_id, messages, len(messages), _moment(row[1]), _moment(row[2]))

    def _list_sessions(self, limit: int, after: int) -> list[SessionRecord]:
        rows = self._db.execute(
            "SELECT s.session_id, (SELECT count(*) FROM messages m WHERE m.session_id = s.session_id), created_at, "
            "updated_at FROM sessions s ORDER BY updated_at DESC, session_id LIMIT ? OFFSET ?",
            (limit, after),
        )
        return [SessionRecord(row[0], (), row[1], _moment(row[2]), _moment(row[3])) for row in rows]

    def _delete_session(self, session_id: str) -> None:
        if not self._db.execute("DELETE FROM sessions WHERE session_id=?", (session_id,)).rowcount:
            raise NotFound(f"no session has id {session_id!r}")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _record(row: Sequence[Any]) -> ExecutionRecord:
    last_failure = None if row[11] is None else failure_from_proto(error_pb2.SystemError.FromString(row[11]))
    return ExecutionRecord(
        request_id=row[0],
        session_id=row[1],
        trace_id=row[2],
        mode=Mode(row[3]),
        started_at=_moment(row[4]),
        state=State(row[5]),
        entered_at=_moment(row[6]),
        attempt=row[7],
        fingerprint=row[8],
        total_steps=row[9],
        last_step=row[10],
        last_failure=last_failure,
        is_interrupted=bool(row[12]),
    )
