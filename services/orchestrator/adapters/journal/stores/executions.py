"""Executions in the journal: their records, their events and the entries from which they resume."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from pagantic.orchestrator.v1 import event_pb2
from pagantic_common.domain.errors import PreconditionFailed
from services.orchestrator.adapters.journal.database import EVERY_TENANT
from services.orchestrator.adapters.journal.rows import (
    IS_INTERRUPTED,
    IS_PARKED,
    RECORD,
    get_record,
    of_execution,
    of_session,
    read_within,
    record_of,
    stored_message,
    wrong_token,
)
from services.orchestrator.adapters.journal.schema import entries, events, executions, messages
from services.orchestrator.adapters.journal.sealing import opened
from services.orchestrator.adapters.journal.stores.kept_requests import SqlKept, page_by_metadata
from services.orchestrator.adapters.journal.writes import (
    NewExecution,
    UnreadableEntryError,
    entry_from_json,
    referred_positions,
    with_history,
)
from services.orchestrator.convert.event import event_from_proto
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import ExecutionJournal, ExecutionRecord, Write
from services.orchestrator.ports.page import Page

MAX_ORDINAL_DIGITS = 18


class SqlExecutions(SqlKept, ExecutionJournal):
    """Executions by request. A page token contains the ordinal of the last execution."""

    async def admit(
        self, record: ExecutionRecord, admitted: Admitted, *, takes_turn: bool = False
    ) -> ExecutionRecord | None:
        existing: ExecutionRecord | None = await self._commit(NewExecution(record, admitted, takes_turn))
        return existing

    def admit_new(self, record: ExecutionRecord, admitted: Admitted) -> Awaitable[None]:
        return self._group.submit(NewExecution(record, admitted, has_new_id=True), can_wait=True)

    async def admit_again(
        self, record: ExecutionRecord, admitted: Admitted, ended: ExecutionRecord, *, takes_turn: bool = False
    ) -> int | None:
        admission = NewExecution(record, admitted, takes_turn)
        after: int | None = await self._commit(lambda db: self._writes.admit_again(db, admission, ended))
        return after

    async def after_sequence(self, key: ExecutionKey) -> int:
        query = select(executions.c.after_sequence).where(of_execution(executions, key))
        return await self._read(key.tenant, lambda db: int(db.execute(query).scalar_one_or_none() or 0))

    def write(self, write: Write, *, can_wait: bool = False) -> Awaitable[None]:
        return self._group.submit(write, can_wait=can_wait)

    async def get(self, key: ExecutionKey) -> ExecutionRecord:
        return await self._read(key.tenant, lambda db: get_record(db, key))

    async def list_executions(
        self,
        *,
        tenant: str,
        limit: int,
        after: str,
        session_id: str,
        state: State | None,
        metadata: Mapping[str, str],
        mode: Mode | None = None,
        max_bytes: int = 0,
    ) -> Page[ExecutionRecord]:
        ordinal = executions.c.ordinal
        query = select(ordinal, *RECORD).where(executions.c.tenant == tenant).order_by(ordinal.desc())
        if after:
            query = query.where(ordinal < _ordinal_of(after))
        if session_id:
            query = query.where(executions.c.session_id == session_id)
        if state is not None:
            query = query.where(executions.c.state == state.value)
        if mode is not None:
            query = query.where(executions.c.mode == mode.value)
        if metadata:
            return await self._read(
                tenant, lambda db: page_by_metadata(db, query, metadata, limit, max_bytes or sys.maxsize)
            )
        return await self._read(tenant, lambda db: _page(db, query, limit))

    async def interrupted(self, *, with_plans: bool) -> list[ExecutionKey]:
        is_wanted = executions.c.background == 1
        if with_plans:
            is_wanted |= executions.c.mode == Mode.PLAN.value
        query = select(executions.c.tenant, executions.c.request_id).where(IS_INTERRUPTED, is_wanted)
        query = query.order_by(executions.c.ordinal)
        return await self._read(EVERY_TENANT, lambda db: [ExecutionKey(*row) for row in db.execute(query)])

    async def due(self, limit: int, *, without: Collection[str] = ()) -> list[ExecutionKey]:
        query = select(executions.c.tenant, executions.c.request_id).where(
            IS_PARKED, executions.c.wakes_at <= self._now_s(), executions.c.tenant.not_in(list(without))
        )
        query = query.order_by(executions.c.wakes_at).limit(limit)
        return await self._read(EVERY_TENANT, lambda db: [ExecutionKey(*row) for row in db.execute(query)])

    async def timeline(self, key: ExecutionKey, after: int = 0, limit: int = 0) -> list[Event]:
        return await self._read(key.tenant, lambda db: _timeline(db, key, after, limit or None))

    async def timeline_page(
        self, key: ExecutionKey, after: int, limit: int, max_bytes: int
    ) -> tuple[list[Event], bool]:
        return await self._read(key.tenant, lambda db: _timeline_page(db, key, after, limit, max_bytes))

    async def entries(self, key: ExecutionKey) -> list[Entry]:
        return await self._read(key.tenant, lambda db: _entries(db, key))


def _ordinal_of(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) <= MAX_ORDINAL_DIGITS):
        raise wrong_token(token)
    return int(token)


def _page(db: Connection, found: Select[Any], limit: int) -> Page[ExecutionRecord]:
    rows = db.execute(found.limit(limit + 1)).mappings().all()
    records = [record_of(db, row) for row in rows[:limit]]
    if len(rows) <= limit:
        return Page(records)
    return Page(records, str(rows[limit - 1]["ordinal"]))


def _stored_events(key: ExecutionKey, after: int) -> Select[Any]:
    query = select(events.c.event, events.c.sequence).where(of_execution(events, key), events.c.sequence > after)
    return query.order_by(events.c.sequence)


def _timeline(db: Connection, key: ExecutionKey, after: int, limit: int | None) -> list[Event]:
    return _events_of(db, key, db.execute(_stored_events(key, after).limit(limit)).all())


def _timeline_page(
    db: Connection, key: ExecutionKey, after: int, limit: int, max_bytes: int
) -> tuple[list[Event], bool]:
    rows, has_more = read_within(db, _stored_events(key, after).limit(limit + 1), limit, max_bytes)
    return _events_of(db, key, rows), has_more


def _events_of(db: Connection, key: ExecutionKey, rows: Sequence[Row[Any]]) -> list[Event]:
    """Decode events. Raises NotFound if there are no events because the execution does not exist."""
    if not rows:
        get_record(db, key)
    stored = (opened(db, events.c.event, row.event, *key, row.sequence) for row in rows)
    return [event_from_proto(event_pb2.ExecutionEvent.FromString(event)) for event in stored]


def _entries(db: Connection, key: ExecutionKey) -> list[Entry]:
    query = select(entries.c.entry, entries.c.position).where(of_execution(entries, key)).order_by(entries.c.position)
    stored_entries = (opened(db, entries.c.entry, row.entry, *key, row.position) for row in db.execute(query))
    try:
        read = [entry_from_json(entry) for entry in stored_entries]
    except UnreadableEntryError as error:
        raise PreconditionFailed(f"execution {key.request_id!r} cannot be resumed: {error}") from None
    session_id = next((entry.request.session_id for entry in read if isinstance(entry, Admitted)), "")
    session = SessionKey(key.tenant, session_id)
    return [_with_history(db, session, entry) for entry in read]


def _with_history(db: Connection, session: SessionKey, entry: Entry) -> Entry:
    """Return an entry, with the messages to which it refers in the stored conversation."""
    referred = referred_positions(entry)
    if not referred:
        return entry
    position = messages.c.position
    query = select(messages.c.message, position).where(
        of_session(messages, session), position >= referred.start, position < referred.stop
    )
    stored = [stored_message(db, session, row.position, row.message) for row in db.execute(query.order_by(position))]
    if len(stored) != len(referred):
        raise PreconditionFailed(
            f"the conversation {session.session_id!r} that the execution goes on from was deleted: send the request "
            "again under a new request_id"
        )
    return with_history(entry, stored)
