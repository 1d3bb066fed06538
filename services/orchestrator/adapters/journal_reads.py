"""What the journal knows: queries on one connection, synchronous. Payloads are the protos that clients get."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, RowMapping, Select, and_, func, or_, select

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.codec.messages import message_from_proto
from pagantic_common.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from pagantic_common.domain.ids import is_id
from pagantic_common.domain.messages import Message
from services.orchestrator.adapters import journal_schema as tables
from services.orchestrator.convert.entry import UnreadableEntryError, entry_from_json, referred_count
from services.orchestrator.convert.event import event_from_proto
from services.orchestrator.convert.response import response_from_proto
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Mode
from services.orchestrator.ports.journal import ExecutionRecord, Page, SessionRecord, UsageTotal

MAX_ORDINAL_DIGITS = 18
READ_AT_ONCE = 50  # rows

_executions, _sessions = tables.executions, tables.sessions
IS_INTERRUPTED = and_(_executions.c.response.is_(None), _executions.c.interrupted == 1)
_NOT_READ = ("ordinal", "response", "owner", "cancel_requested", "interrupted_at", "after_sequence")
_RECORD = [column for column in _executions.c if column.name not in _NOT_READ]


def get(db: Connection, request_id: str) -> ExecutionRecord:
    """Return an execution with its response."""
    found = select(*_RECORD, _executions.c.response).where(_executions.c.request_id == request_id)
    row = db.execute(found).mappings().first()
    if row is None:
        raise NotFound(f"no execution has request_id {request_id!r}")
    stored = row["response"]
    response = None if stored is None else response_from_proto(execution_pb2.SystemResponse.FromString(stored))
    return replace(_record_of(row), response=response)


def list_executions(
    db: Connection, *, limit: int, after: str, session_id: str, state: State | None
) -> Page[ExecutionRecord]:
    """Return executions, newest first; the token is the ordinal of the last one."""
    ordinal = _executions.c.ordinal
    found = select(ordinal, *_RECORD).order_by(ordinal.desc()).limit(limit + 1)
    if after:
        found = found.where(ordinal < _number_of(after))
    if session_id:
        found = found.where(_executions.c.session_id == session_id)
    if state is not None:
        found = found.where(_executions.c.state == state.value)
    rows = db.execute(found).mappings().all()
    token = str(rows[limit - 1]["ordinal"]) if len(rows) > limit else ""
    return Page([_record_of(row) for row in rows[:limit]], token)


def _number_of(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) <= MAX_ORDINAL_DIGITS):
        raise _wrong_token(token)
    return int(token)


def _wrong_token(token: str) -> InvalidRequest:
    return InvalidRequest(f"page_token {token[:40]!r} is not one that this service gave")


def interrupted(db: Connection, mode: Mode) -> list[str]:
    """Return the ids of interrupted executions, oldest first."""
    found = select(_executions.c.request_id).where(IS_INTERRUPTED, _executions.c.mode == mode.value)
    return list(db.execute(found.order_by(_executions.c.ordinal)).scalars())


def timeline(db: Connection, request_id: str, after: int, limit: int) -> list[Event]:
    """Return the events above a sequence, so many of them; 0 is all."""
    table = tables.events
    found = select(table.c.event).where(table.c.request_id == request_id, table.c.sequence > after)
    stored = db.execute(found.order_by(table.c.sequence).limit(limit or None)).scalars().all()
    if not stored:
        get(db, request_id)
    return [event_from_proto(event_pb2.ExecutionEvent.FromString(event)) for event in stored]


def timeline_page(db: Connection, request_id: str, after: int, limit: int, max_bytes: int) -> tuple[list[Event], bool]:
    """Return the events above a sequence that are within the limits, at least one, and whether there are more."""
    table = tables.events
    found = select(table.c.event).where(table.c.request_id == request_id, table.c.sequence > after)
    stored, has_more = _within(db, found.order_by(table.c.sequence).limit(limit + 1), limit, max_bytes)
    if not stored:
        get(db, request_id)
    return [event_from_proto(event_pb2.ExecutionEvent.FromString(row.event)) for row in stored], has_more


def _within(db: Connection, found: Select[Any], limit: int, max_bytes: int) -> tuple[list[Row[Any]], bool]:
    """Return the first rows that are within the limits, at least one, and whether there are more; no more is read.

    The bytes are those of each row's first column.
    """
    taken: list[Row[Any]] = []
    left_bytes = max_bytes
    with db.execute(found.execution_options(yield_per=READ_AT_ONCE)) as rows:
        for row in rows:
            left_bytes -= len(row[0])
            if taken and (len(taken) >= limit or left_bytes < 0):
                return taken, True
            taken.append(row)
    return taken, False


def entries(db: Connection, request_id: str) -> list[Entry]:
    """Return the entries of an execution."""
    table = tables.entries
    found = select(table.c.entry).where(table.c.request_id == request_id).order_by(table.c.position)
    try:
        read = [entry_from_json(entry) for entry in db.execute(found).scalars()]
    except UnreadableEntryError as error:
        raise PreconditionFailed(f"execution {request_id!r} cannot be taken up again: {error}") from None
    session_id = next((entry.request.session_id for entry in read if isinstance(entry, Admitted)), "")
    return [_with_history(db, session_id, one) if isinstance(one, Prepared) else one for one in read]


def _with_history(db: Connection, session_id: str, prepared: Prepared) -> Prepared:
    """Return what was prepared with the messages that it refers to."""
    count, table = referred_count(prepared), tables.messages
    if not count:
        return prepared
    place = table.c.position
    found = select(table.c.message).where(
        table.c.session_id == session_id, place >= prepared.history_start, place < prepared.history_end
    )
    said = [_message_of(stored) for stored in db.execute(found.order_by(place)).scalars()]
    if len(said) != count:
        raise PreconditionFailed(
            f"the conversation {session_id!r} that the execution goes on from was deleted: send the request again "
            "under a new request_id"
        )
    return replace(prepared, history=(*prepared.history, *said))


def after_sequence(db: Connection, request_id: str) -> int:
    """Return the last sequence of an earlier run under the id; 0 for none."""
    found = select(_executions.c.after_sequence).where(_executions.c.request_id == request_id)
    return int(db.execute(found).scalar_one_or_none() or 0)


def history(db: Connection, session_id: str, max_bytes: int) -> tuple[int, tuple[Message, ...]]:
    """Return the newest messages of a conversation that are within so many bytes, and the position of the first."""
    table = tables.messages
    found = select(table.c.message, table.c.position).where(table.c.session_id == session_id)
    stored, _ = _within(db, found.order_by(table.c.position.desc()), sys.maxsize, max_bytes or sys.maxsize)
    first = stored[-1].position if stored else 0
    return first, tuple(_message_of(row.message) for row in reversed(stored))


def _message_of(stored: bytes) -> Message:
    return message_from_proto(message_pb2.Message.FromString(stored))


def get_session(
    db: Connection, session_id: str, limit: int | None, *, before: int = 0, max_bytes: int = 0
) -> SessionRecord:
    """Return a conversation with its state and its newest messages before a position; for a limit of None without any.

    0 is no limit. At least one message comes where there is one.
    """
    row = db.execute(select(_sessions).where(_sessions.c.session_id == session_id)).first()
    if row is None:
        raise no_session(session_id)
    table = tables.messages
    of_session = table.c.session_id == session_id
    count = db.execute(select(func.count()).select_from(table).where(of_session)).scalar_one()
    end = min(before or count, count)
    stored: list[Row[Any]] = []
    if limit is not None:
        found = select(table.c.message).where(of_session, table.c.position < end).order_by(table.c.position.desc())
        stored, _ = _within(db, found, limit or count, max_bytes or sys.maxsize)
    messages = tuple(_message_of(row.message) for row in reversed(stored))
    made, used = _moment(row.created_at), _moment(row.updated_at)
    state = state_of(db, session_id)
    return SessionRecord(session_id, messages, count, made, used, state, first_position=end - len(messages))


def state_of(db: Connection, session_id: str) -> dict[str, str]:
    """Return the values of a session, as JSON documents."""
    table = tables.session_state
    values = db.execute(select(table.c.key, table.c.value_json).where(table.c.session_id == session_id))
    return {row.key: row.value_json for row in values}


def list_sessions(db: Connection, limit: int, after: str) -> Page[SessionRecord]:
    """Return conversations, last used first; the token is when the last one was used, and its id."""
    table, used, name = tables.messages, _sessions.c.updated_at, _sessions.c.session_id
    count = select(func.count()).where(table.c.session_id == name).scalar_subquery()
    found = select(_sessions, count.label("message_count")).order_by(used.desc(), name)
    if after:
        used_s, last = _use_of(after)
        found = found.where(or_(used < used_s, and_(used == used_s, name > last)))
    rows = db.execute(found.limit(limit + 1)).all()
    token = f"{rows[limit - 1].updated_at.hex()}/{rows[limit - 1].session_id}" if len(rows) > limit else ""
    records = [
        SessionRecord(row.session_id, (), row.message_count, _moment(row.created_at), _moment(row.updated_at))
        for row in rows[:limit]
    ]
    return Page(records, token)


def _use_of(token: str) -> tuple[float, str]:
    used, separator, session_id = token.partition("/")
    try:
        used_s = float.fromhex(used)
    except (ValueError, OverflowError):
        raise _wrong_token(token) from None
    if not separator or not is_id(session_id) or not math.isfinite(used_s):
        raise _wrong_token(token)
    return used_s, session_id


def usage_totals(db: Connection, session_id: str | None, model: str | None, limit: int, after: str) -> Page[UsageTotal]:
    """Return totals by session and model; the token is both of the last one, and no session id has a slash."""
    table = tables.usage_totals
    found = select(table).order_by(table.c.session_id, table.c.model)
    if session_id is not None:
        found = found.where(table.c.session_id == session_id)
    if model is not None:
        found = found.where(table.c.model == model)
    if after:
        last_session, separator, last_model = after.partition("/")
        if not separator or "\0" in after:
            raise _wrong_token(after)
        is_later = and_(table.c.session_id == last_session, table.c.model > last_model)
        found = found.where(or_(table.c.session_id > last_session, is_later))
    totals = [UsageTotal(**row) for row in db.execute(found.limit(limit + 1)).mappings()]
    last = totals[limit - 1] if len(totals) > limit else None
    return Page(totals[:limit], f"{last.session_id}/{last.model}" if last is not None else "")


def get_summary(db: Connection, session_id: str) -> Summary | None:
    """Return a conversation's summary."""
    row = db.execute(select(tables.summaries).where(tables.summaries.c.session_id == session_id)).first()
    return None if row is None else Summary(row.text, row.message_count)


def no_session(session_id: str) -> NotFound:
    """Return the error of a session that is not there."""
    return NotFound(f"no session has id {session_id!r}")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _record_of(row: RowMapping) -> ExecutionRecord:
    error = row["last_error"]
    return ExecutionRecord(
        request_id=row["request_id"],
        session_id=row["session_id"],
        trace_id=row["trace_id"],
        mode=Mode(row["mode"]),
        started_at=_moment(row["started_at"]),
        state=State(row["state"]),
        entered_at=_moment(row["entered_at"]),
        attempt=row["attempt"],
        fingerprint=row["fingerprint"],
        total_steps=row["total_steps"],
        last_step=row["last_step"],
        last_failure=None if error is None else failure_from_proto(error_pb2.SystemError.FromString(error)),
        is_interrupted=bool(row["interrupted"]),
    )
