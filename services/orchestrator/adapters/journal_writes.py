"""What the journal is told: statements on one connection, synchronous. Payloads are the protos that clients get.

A write names the owner that makes it: an execution that another owner has taken over cannot be written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Dialect, and_, bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.codec.messages import message_to_proto
from pagantic_common.domain.errors import Aborted, Conflict, InvalidRequest
from pagantic_common.domain.messages import Message
from services.orchestrator.adapters import journal_schema as tables
from services.orchestrator.adapters.journal_reads import IS_INTERRUPTED, get, get_session, state_of
from services.orchestrator.convert.entry import entry_to_json
from services.orchestrator.convert.event import event_to_proto
from services.orchestrator.convert.response import response_to_proto
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.ports.journal import (
    MAX_STATE_BYTES,
    MAX_STATE_VALUES,
    ExecutionRecord,
    Pulse,
    SessionRecord,
    UsageTotal,
    Write,
)

_executions, _turns, _sessions = tables.executions, tables.turns, tables.sessions
_live = and_(_executions.c.response.is_(None), _executions.c.interrupted == 0)
SAME_MOMENT_S = 1e-6  # a moment that was read has microseconds
RELEASED_AT_ONCE = 1000  # a statement takes so many parameters and not many more
_MOVING = ("state", "entered_at", "attempt", "total_steps", "last_step", "last_error", "response")
_SUMS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "cost_usd")


@dataclass(frozen=True, slots=True)
class Admission:
    """An execution to admit.

    One that takes its session's turn is refused while another has it. One whose id must be new fails where it is not.
    """

    record: ExecutionRecord
    admitted: Admitted
    takes_turn: bool = False
    has_new_id: bool = False


class _Prepared:
    """A statement that every request makes, compiled once and given to the driver itself.

    Through the toolkit one of them takes some ten times as long, and there are eight to a request.
    """

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self._sql = str(compiled)
        self._names: Sequence[str] | None = getattr(compiled, "positiontup", None)
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, db: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute it once per row; returns how many rows of the table it touched."""
        filled: list[Any] = [{**self._fixed, **row} for row in rows]
        if self._names is not None:
            filled = [[row[name] for name in self._names] for row in filled]
        cursor = db.connection.cursor()
        try:
            cursor.executemany(self._sql, filled)
            return cursor.rowcount
        finally:
            cursor.close()


class Writes:
    """The statements of one owner, on the connection that each is given."""

    def __init__(self, owner: str, dialect: Dialect) -> None:
        self._owner = owner
        self._insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect.name]
        executions: Any = self._insert(_executions)
        totals: Any = self._insert(tables.usage_totals)
        later = ("ordinal", "response", "last_error", "interrupted_at", "after_sequence")
        admitted = [column.name for column in _executions.c if column.name not in later]
        new: dict[str, Any] = {name: bindparam(name) for name in admitted}
        new |= {"owner": owner, "interrupted": 0, "cancel_requested": 0}
        moved = update(_executions).where(
            _executions.c.request_id == bindparam("key"), _executions.c.owner == owner, _live
        )
        added = {name: tables.usage_totals.c[name] + totals.excluded[name] for name in _SUMS}
        self._admit = _Prepared(executions.values(new).on_conflict_do_nothing(), dialect)
        self._move = _Prepared(moved.values({name: bindparam(name) for name in _MOVING}), dialect)
        self._add_events = _Prepared(self._insert(tables.events), dialect)
        self._add_entries = _Prepared(self._insert(tables.entries), dialect)
        self._add_messages = _Prepared(self._insert(tables.messages), dialect)
        self._end_entries = _Prepared(
            delete(tables.entries).where(tables.entries.c.request_id == bindparam("key")), dialect
        )
        self._end_turns = _Prepared(delete(_turns).where(_turns.c.request_id == bindparam("key")), dialect)
        self._add_totals = _Prepared(
            totals.on_conflict_do_update(index_elements=["session_id", "model"], set_=added), dialect
        )

    def admit(self, db: Connection, admission: Admission) -> ExecutionRecord | None:
        """Store a new execution, or return the one that has its id."""
        record = admission.record
        if self.admit_all(db, [admission]) == 0:
            if admission.has_new_id:
                raise Conflict(f"request_id {record.request_id!r} was made for this request, and another one has it")
            return get(db, record.request_id)
        self._take_turn_now(db, admission)
        return None

    def admit_again(self, db: Connection, admission: Admission, ended: ExecutionRecord) -> int | None:
        """Begin an execution anew that is still as it ended; keep its events and delete its replay entries."""
        record, request_id = admission.record, admission.record.request_id
        fresh = _row_of(record) | {
            "owner": self._owner, "response": None, "last_error": None,
            "interrupted": 0, "interrupted_at": None, "cancel_requested": 0,
        }  # fmt: skip
        ended_s = ended.entered_at.timestamp()
        has_ended = and_(
            _executions.c.request_id == request_id,
            _executions.c.response.is_not(None),
            _executions.c.entered_at.between(ended_s - SAME_MOMENT_S, ended_s + SAME_MOMENT_S),
        )
        if not db.execute(update(_executions).where(has_ended).values(fresh)).rowcount:
            return None
        self._take_turn_now(db, admission)
        events = tables.events.c
        last = db.execute(select(func.max(events.sequence)).where(events.request_id == request_id)).scalar_one() or 0
        begun = update(_executions).where(_executions.c.request_id == request_id)
        db.execute(begun.values(after_sequence=last))
        db.execute(delete(tables.entries).where(tables.entries.c.request_id == request_id))
        self._add_entries.run(db, [_entry_row(request_id, 0, replace(admission.admitted, after_sequence=last))])
        return int(last)

    def _take_turn_now(self, db: Connection, admission: Admission) -> None:
        record = admission.record
        if admission.takes_turn and not self.take_turn(db, record.session_id, record.request_id):
            raise Aborted(
                f"another turn of session {record.session_id!r} runs: send this one again when it has ended",
                retry_after_s=1.0,
            )

    def admit_all(self, db: Connection, admissions: Sequence[Admission]) -> int:
        """Store the executions whose ids are free; returns how many were."""
        count = self._admit.run(db, [_row_of(one.record) for one in admissions])
        if count == len(admissions):
            self._add_entries.run(db, [_entry_row(one.record.request_id, 0, one.admitted) for one in admissions])
        return count

    def write_all(self, db: Connection, writes: Sequence[Write]) -> None:
        """Store what happened; of several writes of one execution the last tells where it stands."""
        events = [_event_row(write.record.request_id, event) for write in writes for event in write.events]
        ending = {write.record.request_id for write in writes if write.record.response is not None}
        entries = [
            _entry_row(write.record.request_id, position, entry)
            for write in writes
            if write.record.request_id not in ending  # nobody takes up what has ended
            for position, entry in enumerate(write.entries, start=write.position)
        ]
        records = {write.record.request_id: write.record for write in writes}
        updates = [_state_row(record) for record in records.values()]
        if self._move.run(db, updates) != len(updates):
            raise Conflict("the execution is another orchestrator's by now, or has ended")
        if events:
            self._add_events.run(db, events)
        if entries:
            self._add_entries.run(db, entries)
        if ended := [write for write in writes if write.record.response is not None]:
            self._end_all(db, ended)

    def _end_all(self, db: Connection, writes: Sequence[Write]) -> None:
        self._end_entries.run(db, [{"key": write.record.request_id} for write in writes])
        with_session = [write for write in writes if write.record.session_id]
        for write in with_session:
            if write.turn:
                self._add_turn(db, write.record.session_id, write.turn, write.record.entered_at.timestamp())
        if with_session:
            self._end_turns.run(db, [{"key": write.record.request_id} for write in with_session])
        if totals := [write.used for write in writes if write.used is not None]:
            self.add_usage(db, totals)

    def add_usage(self, db: Connection, totals: Sequence[UsageTotal]) -> None:
        """Add to the totals of sessions and models."""
        self._add_totals.run(db, _total_rows(totals))

    def _add_turn(self, db: Connection, session_id: str, turn: Sequence[Message], now_s: float) -> None:
        self._touch(db, session_id, now_s)
        messages = tables.messages.c
        last = db.execute(select(func.max(messages.position)).where(messages.session_id == session_id)).scalar_one()
        start = 0 if last is None else last + 1
        rows = [
            {"session_id": session_id, "position": position, "message": message_to_proto(message).SerializeToString()}
            for position, message in enumerate(turn, start=start)
        ]
        self._add_messages.run(db, rows)

    def _touch(self, db: Connection, session_id: str, now_s: float) -> None:
        made = self._insert(_sessions).values(session_id=session_id, created_at=now_s, updated_at=now_s)
        db.execute(
            made.on_conflict_do_update(index_elements=["session_id"], set_={"updated_at": made.excluded.updated_at})
        )

    def take_turn(self, db: Connection, session_id: str, request_id: str) -> bool:
        """Give an execution its session's turn; False while another live one has it."""
        taken = self._insert(_turns).values(session_id=session_id, request_id=request_id).on_conflict_do_nothing()
        if db.execute(taken.returning(_turns.c.session_id)).first() is not None:
            return True
        mine = _turns.c.session_id == session_id
        holder = db.execute(select(_turns.c.request_id).where(mine)).scalar_one_or_none()
        if holder is None:  # given back just now
            return self.take_turn(db, session_id, request_id)
        holds = select(_executions.c.ordinal).where(_executions.c.request_id == holder, _live)
        if holder != request_id and db.execute(holds).first() is not None:
            return False
        handed_over = update(_turns).where(mine, _turns.c.request_id == holder).values(request_id=request_id)
        return bool(db.execute(handed_over).rowcount)

    def claim(self, db: Connection, request_id: str) -> bool:
        """Make an interrupted execution this owner's."""
        claimed = update(_executions).where(_executions.c.request_id == request_id, IS_INTERRUPTED)
        return bool(db.execute(claimed.values(owner=self._owner, interrupted=0)).rowcount)

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

    def register_owner(self, db: Connection, now_s: float) -> None:
        """Register this owner; what its predecessor ran, and what has no owner, is marked as interrupted."""
        self._interrupt(db, _executions.c.owner.in_((self._owner, "")), now_s)
        self.beat(db)

    def unregister_owner(self, db: Connection, now_s: float) -> None:
        """Unregister this owner, and mark the executions that it still ran as interrupted."""
        self._interrupt(db, _executions.c.owner == self._owner, now_s)
        db.execute(delete(tables.owners).where(tables.owners.c.owner == self._owner))

    def interrupt(self, db: Connection, owner: str, beat: int, now_s: float) -> bool:
        """Mark what an owner ran as interrupted, unless it has beaten since."""
        dead = and_(tables.owners.c.owner == owner, tables.owners.c.beat == beat)
        if not db.execute(delete(tables.owners).where(dead)).rowcount:
            return False
        self._interrupt(db, _executions.c.owner == owner, now_s)
        return True

    def release(self, db: Connection, request_ids: Sequence[str], now_s: float) -> None:
        """Mark executions of this owner as interrupted."""
        for start in range(0, len(request_ids), RELEASED_AT_ONCE):
            some = request_ids[start : start + RELEASED_AT_ONCE]
            mine = and_(_executions.c.owner == self._owner, _executions.c.request_id.in_(some))
            self._interrupt(db, mine, now_s)

    def _interrupt(self, db: Connection, which: ColumnElement[bool], now_s: float) -> None:
        db.execute(update(_executions).where(which, _live).values(interrupted=1, interrupted_at=now_s))

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
        _check_state(session_id, state_of(db, session_id))
        return get_session(db, session_id, None)

    def put_summary(self, db: Connection, session_id: str, summary: Summary) -> None:
        """Keep a summary; of a conversation that is not there, none is kept."""
        if db.execute(select(_sessions).where(_sessions.c.session_id == session_id)).first() is None:
            return
        made = self._insert(tables.summaries).values(
            session_id=session_id, text=summary.text, message_count=summary.message_count
        )
        kept = {"text": made.excluded.text, "message_count": made.excluded.message_count}
        db.execute(made.on_conflict_do_update(index_elements=["session_id"], set_=kept))


def _check_state(session_id: str, state: Mapping[str, str]) -> None:
    used_bytes = sum(len(value.encode()) for value in state.values())
    if len(state) > MAX_STATE_VALUES or used_bytes > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"session {session_id!r} would keep {len(state)} values of {used_bytes} bytes; at most {MAX_STATE_VALUES} "
            f"of {MAX_STATE_BYTES} bytes in all are kept"
        )


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
        "fingerprint": record.fingerprint,
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


def _event_row(request_id: str, event: Event) -> dict[str, Any]:
    encoded = event_to_proto(event).SerializeToString()
    return {"request_id": request_id, "sequence": event.sequence, "event": encoded}


def _entry_row(request_id: str, position: int, entry: Entry) -> dict[str, Any]:
    return {"request_id": request_id, "position": position, "entry": entry_to_json(entry)}


def _total_rows(totals: Sequence[UsageTotal]) -> list[dict[str, Any]]:
    return [
        {"session_id": one.session_id, "model": one.model} | {name: getattr(one, name) for name in _SUMS}
        # In one order everywhere: replicas that add to the same rows must not wait for each other in a circle.
        for one in sorted(totals, key=lambda total: (total.session_id, total.model))
    ]
