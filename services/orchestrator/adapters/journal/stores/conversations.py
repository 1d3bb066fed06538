"""Conversations in the journal: messages, values, summaries and turns."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, delete, func, or_, select

from pagantic_common.domain.errors import InvalidRequest, NotFound
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.messages import Message
from pagantic_common.storage.database import ROW_BYTES
from services.orchestrator.adapters.journal import schema as tables
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import (
    add_bytes,
    content_bytes,
    hold,
    moment_of,
    of_session,
    read_within,
    stored_message,
    wrong_token,
)
from services.orchestrator.adapters.journal.sealing import opened, sealed
from services.orchestrator.adapters.journal.upkeep.purge import Purger, forget_sessions
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.ports.journal import (
    MAX_LISTED_CHARS,
    MAX_STATE_BYTES,
    MAX_STATE_VALUES,
    Conversations,
    SessionRecord,
)
from services.orchestrator.ports.page import Page

# Maximum number of bytes per character of an encrypted value. Only this process can count its characters.
_SEALED_CHARS = 8
_sessions, _messages = tables.sessions, tables.messages


class SqlConversations(JournalAccess, Conversations):
    """Conversations by session. A page token contains the time of last use and the id of the last conversation."""

    _purger: Purger

    async def take_turn(self, key: SessionKey, request_id: str) -> bool:
        return bool(await self._commit(lambda db: self._writes.take_turn(db, key, request_id)))

    async def has_turn(self, key: SessionKey, request_id: str) -> bool:
        query = select(tables.turns.c.request_id).where(of_session(tables.turns, key))
        return await self._read(key.tenant, lambda db: db.execute(query).scalar_one_or_none() == request_id)

    async def history(self, key: SessionKey, max_bytes: int = 0, *, limit: int = 0) -> tuple[int, tuple[Message, ...]]:
        limits = (limit or sys.maxsize, max_bytes or sys.maxsize)
        return await self._read(key.tenant, lambda db: _history(db, key, *limits))

    async def get_session(
        self, key: SessionKey, limit: int = 0, *, before: int = 0, max_bytes: int = 0
    ) -> SessionRecord:
        return await self._read(
            key.tenant, lambda db: _session(db, key, limit or sys.maxsize, before, max_bytes or sys.maxsize)
        )

    async def session_state(self, key: SessionKey) -> Mapping[str, str]:
        return await self._read(key.tenant, lambda db: _state_of(db, key))

    async def list_sessions(self, *, tenant: str, limit: int, after: str, state_key: str = "") -> Page[SessionRecord]:
        used, name = _sessions.c.updated_at, _sessions.c.session_id
        is_its = and_(_messages.c.tenant == tenant, _messages.c.session_id == name)
        count = select(func.count()).where(is_its).scalar_subquery()
        query = (
            select(_sessions, count.label("message_count"))
            .where(_sessions.c.tenant == tenant)
            .order_by(used.desc(), name)
        )
        if after:
            used_s, last = _use_of(after)
            query = query.where(or_(used < used_s, and_(used == used_s, name > last)))
        return await self._read(tenant, lambda db: _page(db, query, limit, state_key))

    async def update_state(self, key: SessionKey, values: Mapping[str, str], removed: Sequence[str]) -> SessionRecord:
        now_s = self._now_s()
        updated: SessionRecord = await self._commit(lambda db: self._update_state(db, key, values, removed, now_s))
        return updated

    async def append_messages(self, key: SessionKey, messages: Sequence[Message]) -> SessionRecord:
        now_s = self._now_s()

        def append(db: Connection) -> SessionRecord:
            self._writes.append_messages(db, key, messages, now_s)
            return _session(db, key, 0, 0, 0)

        appended: SessionRecord = await self._commit(append)
        return appended

    async def replace_messages(self, key: SessionKey, messages: Mapping[int, Message]) -> SessionRecord:
        now_s = self._now_s()

        def replace(db: Connection) -> SessionRecord:
            self._writes.replace_messages(db, key, messages, now_s)
            return _session(db, key, 0, 0, 0)

        replaced: SessionRecord = await self._commit(replace)
        return replaced

    async def delete_session(self, key: SessionKey) -> None:
        forgotten = await self._purger.forget_session(key)
        deleted = await self._commit(lambda db: forget_sessions(db, [key]))
        if not forgotten and not deleted:
            raise _no_session(key)

    async def get_summary(self, key: SessionKey) -> Summary | None:
        """Return the summary of a conversation, or None if there is no summary."""
        return await self._read(key.tenant, lambda db: _summary(db, key))

    async def put_summary(self, key: SessionKey, summary: Summary) -> None:
        """Store a summary, unless the conversation was deleted."""
        await self._commit(lambda db: self._put_summary(db, key, summary))

    def _update_state(
        self, db: Connection, key: SessionKey, values: Mapping[str, str], removed: Sequence[str], now_s: float
    ) -> SessionRecord:
        self._writes.touch(db, key, now_s)  # Block other changes of the conversation.
        table = tables.session_state
        earlier_bytes = content_bytes(db, table, of_session(table, key))
        if removed:
            db.execute(delete(table).where(of_session(table, key), table.c.key.in_(removed)))
        if values:
            statement = self._insert(table)
            statement = statement.on_conflict_do_update(
                index_elements=["tenant", "session_id", "key"], set_={"value_json": statement.excluded.value_json}
            )
            rows = [
                key._asdict() | {"key": name, "value_json": sealed(db, table.c.value_json, value, *key, name)}
                for name, value in values.items()
            ]
            db.execute(statement, rows)
        state = _state_of(db, key)
        _check_state(key.session_id, state)
        state_bytes = sum(ROW_BYTES + len(value.encode()) for value in state.values())
        add_bytes(db, _sessions, of_session(_sessions, key), state_bytes - earlier_bytes)
        return _session(db, key, 0, 0, 0)

    def _put_summary(self, db: Connection, key: SessionKey, summary: Summary) -> None:
        if not hold(db, _sessions, of_session(_sessions, key)):
            return
        earlier_bytes = content_bytes(db, tables.summaries, of_session(tables.summaries, key))
        made = self._insert(tables.summaries).values(
            **key._asdict(),
            text=sealed(db, tables.summaries.c.text, summary.text, *key),
            message_count=summary.message_count,
        )
        kept = {"text": made.excluded.text, "message_count": made.excluded.message_count}
        db.execute(made.on_conflict_do_update(index_elements=["tenant", "session_id"], set_=kept))
        added_bytes = ROW_BYTES + len(summary.text.encode()) - earlier_bytes
        add_bytes(db, _sessions, of_session(_sessions, key), added_bytes)


def _history(db: Connection, key: SessionKey, limit: int, max_bytes: int) -> tuple[int, tuple[Message, ...]]:
    query = select(_messages.c.message, _messages.c.position).where(of_session(_messages, key))
    stored, _ = read_within(db, query.order_by(_messages.c.position.desc()), limit, max_bytes)
    if not stored:
        return 0, ()
    return stored[-1].position, tuple(stored_message(db, key, row.position, row.message) for row in reversed(stored))


def _session(db: Connection, key: SessionKey, limit: int, before: int, max_bytes: int) -> SessionRecord:
    """Return a conversation with its newest messages before a position, within the limits.

    A limit of 0 selects no messages.
    """
    row = db.execute(select(_sessions).where(of_session(_sessions, key))).first()
    if row is None:
        raise _no_session(key)
    is_its = of_session(_messages, key)
    count = db.execute(select(func.count()).select_from(_messages).where(is_its)).scalar_one()
    end = min(before or count, count)
    stored: list[Row[Any]] = []
    if limit:
        query = select(_messages.c.message, _messages.c.position).where(is_its, _messages.c.position < end)
        stored, _ = read_within(db, query.order_by(_messages.c.position.desc()), limit, max_bytes)
    return SessionRecord(
        key.session_id,
        tuple(stored_message(db, key, row.position, row.message) for row in reversed(stored)),
        count,
        moment_of(row.created_at),
        moment_of(row.updated_at),
        _state_of(db, key),
        first_position=end - len(stored),
    )


def _state_of(db: Connection, key: SessionKey) -> dict[str, str]:
    table = tables.session_state
    values = db.execute(select(table.c.key, table.c.value_json).where(of_session(table, key)))
    return {row.key: opened(db, table.c.value_json, row.value_json, *key, row.key) for row in values}


def _page(db: Connection, found: Select[Any], limit: int, state_key: str) -> Page[SessionRecord]:
    rows = db.execute(found.limit(limit + 1)).all()
    values = _values_of(db, rows[:limit], state_key)
    records = [
        SessionRecord(
            row.session_id,
            (),
            row.message_count,
            moment_of(row.created_at),
            moment_of(row.updated_at),
            {state_key: values[row.session_id]} if row.session_id in values else {},
        )
        for row in rows[:limit]
    ]
    if len(rows) <= limit:
        return Page(records)
    last = rows[limit - 1]
    return Page(records, f"{last.updated_at.hex()}/{last.session_id}")


def _values_of(db: Connection, sessions: Sequence[Row[Any]], state_key: str) -> dict[str, str]:
    """Return the values of a state key by session id, for sessions of one tenant. Long values are omitted."""
    if not state_key or not sessions:
        return {}
    table = tables.session_state
    query = select(table.c.session_id, table.c.value_json).where(
        table.c.tenant == sessions[0].tenant,
        table.c.session_id.in_([session.session_id for session in sessions]),
        table.c.key == state_key,
        func.length(table.c.value_json) <= _SEALED_CHARS * MAX_LISTED_CHARS,
    )
    tenant = sessions[0].tenant
    values = {
        row.session_id: opened(db, table.c.value_json, row.value_json, tenant, row.session_id, state_key)
        for row in db.execute(query)
    }
    return {session_id: value for session_id, value in values.items() if len(value) <= MAX_LISTED_CHARS}


def _use_of(token: str) -> tuple[float, str]:
    used, separator, session_id = token.partition("/")
    try:
        used_s = float.fromhex(used)
    except (ValueError, OverflowError):
        raise wrong_token(token) from None
    if not separator or not is_id(session_id) or not math.isfinite(used_s):
        raise wrong_token(token)
    return used_s, session_id


def _summary(db: Connection, key: SessionKey) -> Summary | None:
    row = db.execute(select(tables.summaries).where(of_session(tables.summaries, key))).first()
    if row is None:
        return None
    return Summary(opened(db, tables.summaries.c.text, row.text, *key), row.message_count)


def _no_session(key: SessionKey) -> NotFound:
    return NotFound(f"no session has id {key.session_id!r}")


def _check_state(session_id: str, state: Mapping[str, str]) -> None:
    used_bytes = sum(len(value.encode()) for value in state.values())
    if len(state) > MAX_STATE_VALUES or used_bytes > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"session {session_id!r} would keep {len(state)} values of {used_bytes} bytes; at most {MAX_STATE_VALUES} "
            f"of {MAX_STATE_BYTES} bytes in all are kept"
        )
