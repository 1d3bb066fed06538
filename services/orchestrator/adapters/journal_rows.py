"""What the journal keeps, as rows: statements on one connection, synchronous. Payloads are the protos that clients get.

A write names the owner that makes it: an execution that another owner has taken over cannot be written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.codec.messages import message_from_proto, message_to_proto
from pagantic_common.domain.errors import Aborted, Conflict, NotFound, PreconditionFailed
from pagantic_common.domain.messages import Message
from services.orchestrator.adapters import journal_schema as tables
from services.orchestrator.convert.entry import UnreadableEntryError, entry_from_json, entry_to_json
from services.orchestrator.convert.event import event_from_proto, event_to_proto
from services.orchestrator.convert.response import response_from_proto, response_to_proto
from services.orchestrator.core.events import Event
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.memory import Summary
from services.orchestrator.core.replay import Admitted, Entry
from services.orchestrator.core.request import Mode
from services.orchestrator.ports.journal import ExecutionRecord, Pulse, SessionRecord, UsageTotal, Write

_executions, _turns, _sessions = tables.executions, tables.turns, tables.sessions
_live = and_(_executions.c.response.is_(None), _executions.c.interrupted == 0)
_NOT_READ = ("ordinal", "response", "owner", "cancel_requested")
_RECORD = [column for column in _executions.c if column.name not in _NOT_READ]
_COUNTED = {"preserve_rowcount": True}  # else only updates and deletes tell how many rows they touched
_SUMS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "cost_usd")


@dataclass(frozen=True, slots=True)
class Admission:
    """An execution to admit; one that takes its session's turn is refused while another has it."""

    record: ExecutionRecord
    admitted: Admitted
    takes_turn: bool = False


class Rows:
    """The statements of one owner, on the connection that each is given."""

    def __init__(self, owner: str, dialect: str) -> None:
        self._owner = owner
        self._insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect]
        self._update_execution = (
            update(_executions)
            .where(_executions.c.request_id == bindparam("key"), _executions.c.owner == owner, _live)
            .values(
                {
                    column: bindparam(column)
                    for column in (
                        "state", "entered_at", "attempt", "total_steps", "last_step", "last_error", "response",
                    )
                }
            )
        )  # fmt: skip

    # ---- writing --------------------------------------------------------------------------------------------------

    def admit(self, db: Connection, admission: Admission) -> ExecutionRecord | None:
        """Store a new execution, or return the one that has its id."""
        record = admission.record
        if self.admit_all(db, [admission]) == 0:
            return self.get(db, record.request_id)
        if admission.takes_turn and not self.take_turn(db, record.session_id, record.request_id):
            raise Aborted(
                f"another turn of session {record.session_id!r} runs: send this one again when it has ended",
                retry_after_s=1.0,
            )
        return None

    def admit_all(self, db: Connection, admissions: Sequence[Admission]) -> int:
        """Store the executions whose ids are free; returns how many were."""
        rows = [_row_of(one.record) | {"fingerprint": one.record.fingerprint} for one in admissions]
        statement = self._insert(_executions).values(owner=self._owner).on_conflict_do_nothing()
        count: int = db.execute(statement, rows, execution_options=_COUNTED).rowcount
        if count == len(rows):
            entries = [_entry_row(one.record.request_id, 0, one.admitted) for one in admissions]
            db.execute(self._insert(tables.entries), entries)
        return count

    def write_all(self, db: Connection, writes: Sequence[Write]) -> None:
        """Store what happened; of several writes of one execution the last tells where it stands."""
        events = [
            {
                "request_id": write.record.request_id,
                "sequence": event.sequence,
                "event": event_to_proto(event).SerializeToString(),
            }
            for write in writes
            for event in write.events
        ]
        entries = [
            _entry_row(write.record.request_id, position, entry)
            for write in writes
            for position, entry in enumerate(write.entries, start=write.position)
        ]
        records = {write.record.request_id: write.record for write in writes}
        updates = [_state_row(record) for record in records.values()]
        if db.execute(self._update_execution, updates).rowcount != len(updates):
            raise Conflict("the execution is another orchestrator's by now, or has ended")
        if events:
            db.execute(self._insert(tables.events), events)
        if entries:
            db.execute(self._insert(tables.entries), entries)
        self._end_all(db, [write for write in writes if write.record.response is not None])

    def _end_all(self, db: Connection, writes: Sequence[Write]) -> None:
        with_session = [write for write in writes if write.record.session_id]
        for write in with_session:
            if write.turn:
                self._add_turn(db, write.record.session_id, write.turn, write.record.entered_at.timestamp())
        if with_session:
            db.execute(
                delete(_turns).where(_turns.c.request_id == bindparam("key")),
                [{"key": write.record.request_id} for write in with_session],
            )
        self._add_usage(db, [write.used for write in writes if write.used is not None])

    def _add_usage(self, db: Connection, totals: Sequence[UsageTotal]) -> None:
        if not totals:
            return
        table = tables.usage_totals
        statement: Insert = self._insert(table)
        added = {name: table.c[name] + statement.excluded[name] for name in _SUMS}
        statement = statement.on_conflict_do_update(index_elements=["session_id", "model"], set_=added)
        rows = [
            {"session_id": one.session_id, "model": one.model} | {name: getattr(one, name) for name in _SUMS}
            # In one order everywhere: replicas that add to the same rows must not wait for each other in a circle.
            for one in sorted(totals, key=lambda total: (total.session_id, total.model))
        ]
        db.execute(statement, rows)

    def _add_turn(self, db: Connection, session_id: str, turn: Sequence[Message], now_s: float) -> None:
        self._touch(db, session_id, now_s)
        count = select(func.count()).select_from(tables.messages).where(tables.messages.c.session_id == session_id)
        start = db.execute(count).scalar_one()
        rows = [
            {"session_id": session_id, "position": position, "message": message_to_proto(message).SerializeToString()}
            for position, message in enumerate(turn, start=start)
        ]
        db.execute(self._insert(tables.messages), rows)

    def _touch(self, db: Connection, session_id: str, now_s: float) -> None:
        made = self._insert(_sessions).values(session_id=session_id, created_at=now_s, updated_at=now_s)
        db.execute(
            made.on_conflict_do_update(index_elements=["session_id"], set_={"updated_at": made.excluded.updated_at})
        )

    def take_turn(self, db: Connection, session_id: str, request_id: str) -> bool:
        """Give an execution its session's turn; False while another live one has it."""
        taken = self._insert(_turns).values(session_id=session_id, request_id=request_id).on_conflict_do_nothing()
        if db.execute(taken, execution_options=_COUNTED).rowcount:
            return True
        mine = _turns.c.session_id == session_id
        holder = db.execute(select(_turns.c.request_id).where(mine)).scalar_one()
        holds = select(_executions.c.ordinal).where(_executions.c.request_id == holder, _live)
        if holder != request_id and db.execute(holds).first() is not None:
            return False
        handed_over = update(_turns).where(mine, _turns.c.request_id == holder).values(request_id=request_id)
        return bool(db.execute(handed_over).rowcount)

    def claim(self, db: Connection, request_id: str) -> bool:
        """Make an interrupted execution this owner's."""
        free = and_(_executions.c.request_id == request_id, _executions.c.response.is_(None))
        claimed = update(_executions).where(free, _executions.c.interrupted == 1)
        return bool(db.execute(claimed.values(owner=self._owner, interrupted=0, cancel_requested=0)).rowcount)

    def request_cancel(self, db: Connection, request_id: str) -> None:
        """Have the owner of a live execution stop it."""
        db.execute(update(_executions).where(_executions.c.request_id == request_id, _live).values(cancel_requested=1))

    def beat(self, db: Connection) -> Pulse:
        """Count this owner's beat up, and see the others'."""
        mine = self._insert(tables.owners).values(owner=self._owner, beat=1)
        db.execute(mine.on_conflict_do_update(index_elements=["owner"], set_={"beat": tables.owners.c.beat + 1}))
        beats = {row.owner: row.beat for row in db.execute(select(tables.owners))}
        asked = select(_executions.c.request_id).where(
            _executions.c.owner == self._owner, _live, _executions.c.cancel_requested == 1
        )
        return Pulse(beats, tuple(db.execute(asked).scalars()))

    def interrupt(self, db: Connection, owner: str) -> None:
        """Mark what a dead owner ran as interrupted."""
        db.execute(update(_executions).where(_executions.c.owner == owner, _live).values(interrupted=1))
        db.execute(delete(tables.owners).where(tables.owners.c.owner == owner))

    def release(self, db: Connection, request_ids: Sequence[str]) -> None:
        """Mark executions of this owner as interrupted."""
        mine = and_(_executions.c.owner == self._owner, _executions.c.request_id.in_(request_ids))
        db.execute(update(_executions).where(mine, _live).values(interrupted=1))

    def update_state(
        self, db: Connection, session_id: str, values: Mapping[str, str], removed: Sequence[str], now_s: float
    ) -> SessionRecord:
        """Set and remove values of a session."""
        self._touch(db, session_id, now_s)
        table = tables.session_state
        if removed:
            db.execute(delete(table).where(table.c.session_id == session_id, table.c.key.in_(removed)))
        if values:
            statement = self._insert(table)
            statement = statement.on_conflict_do_update(
                index_elements=["session_id", "key"], set_={"value_json": statement.excluded.value_json}
            )
            rows = [{"session_id": session_id, "key": key, "value_json": value} for key, value in values.items()]
            db.execute(statement, rows)
        return self.get_session(db, session_id)

    def put_summary(self, db: Connection, session_id: str, summary: Summary) -> None:
        """Keep a summary; of a conversation that is not there, none is kept."""
        if db.execute(select(_sessions).where(_sessions.c.session_id == session_id)).first() is None:
            return
        made = self._insert(tables.summaries).values(
            session_id=session_id, text=summary.text, message_count=summary.message_count
        )
        kept = {"text": made.excluded.text, "message_count": made.excluded.message_count}
        db.execute(made.on_conflict_do_update(index_elements=["session_id"], set_=kept))

    def get_summary(self, db: Connection, session_id: str) -> Summary | None:
        """Return a conversation's summary."""
        row = db.execute(select(tables.summaries).where(tables.summaries.c.session_id == session_id)).first()
        return None if row is None else Summary(row.text, row.message_count)

    def delete_session(self, db: Connection, session_id: str) -> None:
        """Remove a conversation with all that is kept for it; what it cost stays."""
        if not db.execute(delete(_sessions).where(_sessions.c.session_id == session_id)).rowcount:
            raise _no_session(session_id)
        for table in (tables.messages, tables.session_state, tables.summaries):
            db.execute(delete(table).where(table.c.session_id == session_id))

    def purge(self, db: Connection, oldest_s: float) -> None:
        """Forget executions that ended, or were interrupted, before a time."""
        old = and_(
            _executions.c.entered_at < oldest_s,
            or_(_executions.c.interrupted == 1, _executions.c.response.is_not(None)),
        )
        ids = select(_executions.c.request_id).where(old)
        for table in (tables.events, tables.entries):
            db.execute(delete(table).where(table.c.request_id.in_(ids)))
        db.execute(delete(_executions).where(old))

    # ---- reading --------------------------------------------------------------------------------------------------

    def get(self, db: Connection, request_id: str) -> ExecutionRecord:
        """Return an execution with its response."""
        found = select(*_RECORD, _executions.c.response).where(_executions.c.request_id == request_id)
        row = db.execute(found).mappings().first()
        if row is None:
            raise NotFound(f"no execution has request_id {request_id!r}")
        stored = row["response"]
        response = None if stored is None else response_from_proto(execution_pb2.SystemResponse.FromString(stored))
        return replace(_record_of(row), response=response)

    def list_executions(
        self, db: Connection, limit: int, before: str, session_id: str, state: State | None
    ) -> list[ExecutionRecord]:
        """Return executions, newest first."""
        found = select(*_RECORD).order_by(_executions.c.ordinal.desc()).limit(limit)
        if before:
            of_token = select(_executions.c.ordinal).where(_executions.c.request_id == before).scalar_subquery()
            found = found.where(_executions.c.ordinal < of_token)
        if session_id:
            found = found.where(_executions.c.session_id == session_id)
        if state is not None:
            found = found.where(_executions.c.state == state.value)
        return [_record_of(row) for row in db.execute(found).mappings()]

    def interrupted(self, db: Connection, mode: Mode) -> list[str]:
        """Return the ids of interrupted executions, oldest first."""
        found = select(_executions.c.request_id).where(_executions.c.interrupted == 1, _executions.c.mode == mode.value)
        return list(db.execute(found.order_by(_executions.c.ordinal)).scalars())

    def timeline(self, db: Connection, request_id: str, after: int) -> list[Event]:
        """Return the events above a sequence."""
        table = tables.events
        found = select(table.c.event).where(table.c.request_id == request_id, table.c.sequence > after)
        stored = db.execute(found.order_by(table.c.sequence)).scalars().all()
        if not stored:
            self.get(db, request_id)
        return [event_from_proto(event_pb2.ExecutionEvent.FromString(event)) for event in stored]

    def entries(self, db: Connection, request_id: str) -> list[Entry]:
        """Return the entries of an execution."""
        table = tables.entries
        found = select(table.c.entry).where(table.c.request_id == request_id).order_by(table.c.position)
        try:
            return [entry_from_json(entry) for entry in db.execute(found).scalars()]
        except UnreadableEntryError as error:
            raise PreconditionFailed(f"execution {request_id!r} cannot be taken up again: {error}") from None

    def history(self, db: Connection, session_id: str) -> tuple[Message, ...]:
        """Return the messages of a conversation."""
        table = tables.messages
        found = select(table.c.message).where(table.c.session_id == session_id).order_by(table.c.position)
        stored = db.execute(found).scalars()
        return tuple(message_from_proto(message_pb2.Message.FromString(message)) for message in stored)

    def get_session(self, db: Connection, session_id: str) -> SessionRecord:
        """Return a conversation with its messages and its state."""
        row = db.execute(select(_sessions).where(_sessions.c.session_id == session_id)).first()
        if row is None:
            raise _no_session(session_id)
        messages = self.history(db, session_id)
        table = tables.session_state
        values = db.execute(select(table.c.key, table.c.value_json).where(table.c.session_id == session_id))
        state = {row.key: row.value_json for row in values}
        made, used = _moment(row.created_at), _moment(row.updated_at)
        return SessionRecord(session_id, messages, len(messages), made, used, state)

    def list_sessions(self, db: Connection, limit: int, after: int) -> list[SessionRecord]:
        """Return conversations, last used first."""
        table = tables.messages
        count = select(func.count()).where(table.c.session_id == _sessions.c.session_id).scalar_subquery()
        found = select(_sessions, count.label("message_count")).order_by(
            _sessions.c.updated_at.desc(), _sessions.c.session_id
        )
        return [
            SessionRecord(row.session_id, (), row.message_count, _moment(row.created_at), _moment(row.updated_at))
            for row in db.execute(found.limit(limit).offset(after))
        ]

    def usage_totals(self, db: Connection, session_id: str | None, model: str | None) -> list[UsageTotal]:
        """Return totals by session and model."""
        table = tables.usage_totals
        found = select(table).order_by(table.c.session_id, table.c.model)
        if session_id is not None:
            found = found.where(table.c.session_id == session_id)
        if model is not None:
            found = found.where(table.c.model == model)
        return [UsageTotal(**row) for row in db.execute(found).mappings()]


def _no_session(session_id: str) -> NotFound:
    return NotFound(f"no session has id {session_id!r}")


def _row_of(record: ExecutionRecord) -> dict[str, Any]:
    return {
        "request_id": record.request_id,
        "session_id": record.session_id,
        "trace_id": record.trace_id,
        "mode": record.mode.value,
        "started_at": record.started_at.timestamp(),
        "state": record.state.value,
        "entered_at": record.entered_at.timestamp(),
        "attempt": record.attempt,
        "total_steps": record.total_steps,
        "last_step": record.last_step,
    }


def _state_row(record: ExecutionRecord) -> dict[str, Any]:
    last_error = failure_to_proto(record.last_failure).SerializeToString() if record.last_failure else None
    response = response_to_proto(record.response).SerializeToString() if record.response else None
    return {
        "key": record.request_id,
        "state": record.state.value,
        "entered_at": record.entered_at.timestamp(),
        "attempt": record.attempt,
        "total_steps": record.total_steps,
        "last_step": record.last_step,
        "last_error": last_error,
        "response": response,
    }


def _entry_row(request_id: str, position: int, entry: Entry) -> dict[str, Any]:
    return {"request_id": request_id, "position": position, "entry": entry_to_json(entry)}


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
