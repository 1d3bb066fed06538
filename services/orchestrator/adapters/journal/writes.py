"""The writer's statements, which are synchronous and use one connection. Payloads are the protos that clients receive.

A write names its owner, and fails if another owner has taken over the execution. A journal entry is stored as a JSON
document with its kind and value, independent of class names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message as ProtoMessage
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from sqlalchemy import ColumnElement, Connection, Dialect, Table, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.codec.fields import encode_optional
from pagantic_common.codec.messages import message_to_proto
from pagantic_common.domain.errors import Aborted, Conflict, ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.domain.messages import Message
from pagantic_common.storage.database import ROW_BYTES
from services.orchestrator.adapters.journal import schema as tables
from services.orchestrator.adapters.journal.rows import (
    IS_INTERRUPTED,
    IS_LIVE,
    IS_PARKED,
    PARKED,
    add_bytes,
    content_bytes,
    get_record,
    of_execution,
    of_session,
)
from services.orchestrator.adapters.journal.sealing import SealedBytes, content_size, sealed, sealing_of
from services.orchestrator.app.effects.table import EFFECTS
from services.orchestrator.convert.event import event_to_proto
from services.orchestrator.convert.response import response_to_proto
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.progress import CallBegan, CallEnded, ChildAnswer, StepEnded
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.core.model.plan import path_of_step
from services.orchestrator.core.turn.ending import Failed
from services.orchestrator.ports.journal import ExecutionRecord, UsageTotal, Write

# These names are stored: a class may be renamed, but its name here must stay. A form that older readers would misread
# gets a versioned name ("Prepared.2"), and the old name keeps its reader. The tests keep a journal per release.
KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "Admitted": Admitted,
        "CallBegan.2": CallBegan,
        "CallEnded.2": CallEnded,
        "StepEnded": StepEnded,
        **{command.answer.kind: command.answer for command in EFFECTS},
        Failed.kind: Failed,
    }
)
CHILD = "ChildAnswer"
_NAMES = {kind: name for name, kind in KINDS.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in KINDS.items()}
_executions, _turns, _sessions = tables.executions, tables.turns, tables.sessions
MAX_NAMED_WAITS = 5
SAME_MOMENT_S = 1e-6  # Stored times are rounded to microseconds.
_MOVING = ("state", "entered_at", "attempt", "total_steps", "last_step", "last_error", "response")
_SUMS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "cost_usd")


class UnreadableEntryError(ValueError):
    """The error for an entry that this version cannot read."""


def entry_to_json(entry: Entry) -> bytes:
    """Encode an entry. An answer that a child received includes the child's path and the number of its run.

    Messages of the stored conversation are replaced by their positions, because otherwise each turn would store the
    whole conversation again.
    """
    if isinstance(entry, Prepared):
        entry = replace(entry, history=entry.history[: len(entry.history) - len(referred_positions(entry))])
    if isinstance(entry, ChildAnswer):
        document: list[Any] = [CHILD, entry.answer, entry.path, entry.number, _NAMES[type(entry.answer)]]
    else:
        document = [_NAMES[type(entry)], entry]
    return to_json(document, inf_nan_mode="constants")


def referred_positions(entry: Entry) -> range:
    """Return the positions of the stored messages to which an entry refers instead of containing them."""
    if isinstance(entry, Prepared):
        return range(entry.history_start, entry.history_end)
    return range(0)


def with_history(entry: Entry, referred: Sequence[Message]) -> Entry:
    """Return an entry with the messages to which it refers."""
    if isinstance(entry, Prepared):
        return replace(entry, history=(*entry.history, *referred))
    return entry


def upcast(document: list[Any]) -> list[Any]:
    """Return the document of an entry in the current form. Earlier versions stored a step's name in place of a path."""
    kind, value, *child = document
    if kind in ("CallBegan", "CallEnded"):
        step = value.pop("step", "")
        kind, value["path"] = f"{kind}.2", path_of_step(step) if step else ""
    if child and kind != CHILD:
        step, number = child
        return [CHILD, value, path_of_step(step), number, kind]
    return [kind, value, *child]


def entry_from_json(document: bytes) -> Entry:
    """Decode an entry. Raises UnreadableEntryError if this version cannot read it."""
    try:
        kind, value, *child = upcast(from_json(document))
        if kind == CHILD:
            path, number, kind = child
            entry: Any = ChildAnswer(str(path), int(number), _ADAPTERS[kind].validate_python(value))
        else:
            entry = _ADAPTERS[kind].validate_python(value)
    except ValidationError as error:  # pydantic's message contains values, which may be private.
        where = error.errors(include_input=False, include_url=False)[0]
        raise UnreadableEntryError(f"an entry of {kind} cannot be read: {where['loc']}: {where['msg']}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise UnreadableEntryError("an entry cannot be read: this version does not have its kind") from None
    typed_entry: Entry = entry
    return typed_entry


@dataclass(frozen=True, slots=True)
class NewExecution:
    """An execution to admit.

    With `takes_turn`, the execution is rejected while another execution has the session's turn. With `has_new_id`, the
    admission fails if another execution has the same id.
    """

    record: ExecutionRecord
    admitted: Admitted
    takes_turn: bool = False
    has_new_id: bool = False


class CompiledStatement:
    """A statement that every request runs, compiled once and passed directly to the driver.

    For the eight statements per request, `Connection.execute` takes about ten times as long, and `exec_driver_sql`
    twice as long. Sealed columns are encrypted here, for the row named by the parameters in `key`.
    """

    def __init__(self, statement: Any, dialect: Dialect, *key: str) -> None:
        compiled = statement.compile(dialect=dialect)
        self._sql = str(compiled)
        self._names: Sequence[str] | None = getattr(compiled, "positiontup", None)
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        types = {name: bind.type for name, bind in compiled.binds.items()}
        self._places = [(name, kind.place) for name, kind in types.items() if isinstance(kind, SealedBytes)]
        self._key = key
        self._dialect = dialect

    def run(self, db: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute the statement once per row, and return the number of table rows affected."""
        if not rows:
            return 0
        filled: list[Any] = [{**self._fixed, **row} for row in rows]
        if self._places:
            self._seal(filled)
        if self._names is not None:
            filled = [[row[name] for name in self._names] for row in filled]
        cursor = db.connection.cursor()
        try:
            cursor.executemany(self._sql, filled)
            return cursor.rowcount
        finally:
            cursor.close()

    def _seal(self, rows: Sequence[dict[str, Any]]) -> None:
        sealing = sealing_of(self._dialect)
        if not sealing.has_keys:
            return
        for row in rows:
            key = [row[name] for name in self._key]
            for name, place in self._places:
                if row[name] is not None:
                    row[name] = sealing.seal(row[name], place, *key)


class Writes:
    """Write statements of one owner. Each method takes the connection."""

    def __init__(self, owner: str, dialect: Dialect, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._owner = owner
        self.interrupted_turn_s = 0.0  # time that an interrupted execution keeps its turn
        self._insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[dialect.name]
        executions: Any = self._insert(_executions)
        totals: Any = self._insert(tables.usage_totals)
        later = ("ordinal", "response", "last_error", "interrupted_at", "wakes_at", "parked_s", "after_sequence")
        admitted = [column.name for column in _executions.c if column.name not in later]
        new: dict[str, Any] = {name: bindparam(name) for name in admitted}
        new |= {"owner": owner, "interrupted": 0, "cancel_requested": 0}
        moved = update(_executions).where(_is_keyed(_executions), _executions.c.owner == owner, IS_LIVE)
        counted = {
            "stored_bytes": _executions.c.stored_bytes + bindparam("added_bytes"),
            "entry_bytes": _executions.c.entry_bytes * bindparam("keeps_entries") + bindparam("added_entry_bytes"),
        }
        added = {name: tables.usage_totals.c[name] + totals.excluded[name] for name in _SUMS}
        self._admit = CompiledStatement(executions.values(new).on_conflict_do_nothing(), dialect)
        moved = moved.values({name: bindparam(name) for name in _MOVING} | counted)
        self._move = CompiledStatement(moved, dialect, "key_tenant", "key_id")
        of_execution = ("tenant", "request_id")
        self._add_events = CompiledStatement(self._insert(tables.events), dialect, *of_execution, "sequence")
        self._add_entries = CompiledStatement(self._insert(tables.entries), dialect, *of_execution, "position")
        of_message = ("tenant", "session_id", "position")
        self._add_messages = CompiledStatement(self._insert(tables.messages), dialect, *of_message)
        self._keep = CompiledStatement(self._insert(tables.kept_requests), dialect, *of_execution)
        self._end_entries = CompiledStatement(delete(tables.entries).where(_is_keyed(tables.entries)), dialect)
        self._end_turns = CompiledStatement(delete(_turns).where(_is_keyed(_turns)), dialect)
        self._add_totals = CompiledStatement(
            totals.on_conflict_do_update(index_elements=["tenant", "session_id", "model", "subject"], set_=added),
            dialect,
        )

    def admit(self, db: Connection, admission: NewExecution) -> ExecutionRecord | None:
        """Store a new execution and return None, or return the stored execution with the same id."""
        record = admission.record
        if self.admit_all(db, [admission]) == 0:
            if admission.has_new_id:
                raise Conflict(f"request_id {record.request_id!r} was made for this request, and another one has it")
            return get_record(db, record.key)
        self._take_turn_now(db, admission)
        return None

    def admit_again(self, db: Connection, admission: NewExecution, ended: ExecutionRecord) -> int | None:
        """Restart an ended execution, keep its events and delete its entries. Return the last event's sequence number.

        Returns None if another caller restarted the execution first.
        """
        record, key = admission.record, admission.record.key
        ended_s = ended.entered_at.timestamp()
        has_ended = and_(
            of_execution(_executions, key),
            _executions.c.response.is_not(None),
            _executions.c.entered_at.between(ended_s - SAME_MOMENT_S, ended_s + SAME_MOMENT_S),
        )
        query = select(_executions.c.response, _executions.c.last_error, _executions.c.stored_bytes)
        stored = db.execute(query.where(has_ended).with_for_update()).first()
        if stored is None:
            return None
        self._take_turn_now(db, admission)
        events = tables.events
        last = db.execute(select(func.max(events.c.sequence)).where(of_execution(events, key))).scalar_one() or 0
        freed_bytes = content_size(stored.response) + content_size(stored.last_error)
        for table in (tables.waits, tables.signals):
            freed_bytes += content_bytes(db, table, of_execution(table, key))
        for table in (tables.entries, tables.waits, tables.signals):
            db.execute(delete(table).where(of_execution(table, key)))
        entry = _entry_row(key, 0, replace(admission.admitted, after_sequence=last))
        self._add_entries.run(db, [entry])
        fresh = _row_of(record) | {
            "owner": self._owner, "response": None, "last_error": None, "after_sequence": last,
            "interrupted": 0, "interrupted_at": None, "wakes_at": None, "parked_s": 0.0, "cancel_requested": 0,
            "stored_bytes": stored.stored_bytes - freed_bytes, "entry_bytes": ROW_BYTES + len(entry["entry"]),
        }  # fmt: skip
        db.execute(update(_executions).where(of_execution(_executions, key)).values(fresh))
        return int(last)

    def _take_turn_now(self, db: Connection, admission: NewExecution) -> None:
        record = admission.record
        if admission.takes_turn and not self.take_turn(db, record.session_key, record.request_id):
            raise _turn_runs(record.session_key)

    def admit_all(self, db: Connection, admissions: Sequence[NewExecution]) -> int:
        """Store the executions whose ids are not taken, and return how many were stored."""
        records = [admission.record for admission in admissions]
        kept = [row for record in records for row in _kept_rows(record)]
        entries = [_entry_row(admission.record.key, 0, admission.admitted) for admission in admissions]
        kept_bytes = _bytes_by_execution(kept, "request", "metadata_json")
        entry_bytes = _bytes_by_execution(entries, "entry")
        rows = [
            _row_of(record)
            | {"stored_bytes": ROW_BYTES + kept_bytes[record.key], "entry_bytes": entry_bytes[record.key]}
            for record in records
        ]
        count = self._admit.run(db, rows)
        if count == len(admissions):
            self._add_entries.run(db, entries)
            self._keep.run(db, kept)
        return count

    def write_all(self, db: Connection, writes: Sequence[Write]) -> None:
        """Store the writes. The last write of each execution sets its state."""
        ended = [write for write in writes if write.record.response is not None]
        done = {write.record.key for write in ended if write.record.kept is None}
        events, entries = _event_rows(writes), _entry_rows(writes, done)
        event_bytes, entry_bytes = _bytes_by_execution(events, "event"), _bytes_by_execution(entries, "entry")
        records = {write.record.key: write.record for write in writes}
        updates = [
            _state_row(record, event_bytes[key])
            | {"keeps_entries": int(key not in done), "added_entry_bytes": entry_bytes[key]}
            for key, record in records.items()
        ]
        if self._move.run(db, updates) != len(updates):
            raise Conflict("the execution is another orchestrator's by now, or has ended")
        self._add_events.run(db, events)
        self._add_entries.run(db, entries)
        if ended:
            self._end_all(db, ended)

    def _end_all(self, db: Connection, writes: Sequence[Write]) -> None:
        """Add the turns and the usage of ended executions, delete unkept entries, and free the sessions."""
        self._end_entries.run(db, [_named(write.record.key) for write in writes if write.record.kept is None])
        for write in writes:
            if write.turn:
                self._add_turn(db, write.record.session_key, write.turn, write.record.entered_at.timestamp())
        self._end_turns.run(db, [_named(write.record.key) for write in writes if write.record.session_id])
        self.add_usage(db, [write.used for write in writes if write.used is not None])

    def add_usage(self, db: Connection, totals: Sequence[UsageTotal]) -> None:
        """Add usage to the totals of sessions, models and subjects."""
        self._add_totals.run(db, _total_rows(totals))

    def append_messages(self, db: Connection, key: SessionKey, messages: Sequence[Message], now_s: float) -> None:
        """Append to a conversation. Raises Aborted while a live or recently interrupted execution has its turn."""
        self._check_no_turn_runs(db, key)
        self._add_turn(db, key, messages, now_s)

    def replace_messages(self, db: Connection, key: SessionKey, messages: Mapping[int, Message], now_s: float) -> None:
        """Replace messages by position, and clear any summary that covers them. Raises Aborted like `append_messages`.

        Raises InvalidRequest if a position does not exist in the conversation.
        """
        self._check_no_turn_runs(db, key)
        self.touch(db, key, now_s)  # Block other changes of the conversation.
        table, summaries = tables.messages, tables.summaries
        added_bytes = 0
        for position, message in messages.items():
            payload = message_to_proto(message).SerializeToString()
            which = and_(of_session(table, key), table.c.position == position)
            stored = db.execute(select(table.c.message).where(which)).scalar_one_or_none()
            if stored is None:
                raise InvalidRequest(f"session {key.session_id!r} has no message at position {position} to replace")
            replacement = sealed(db, table.c.message, payload, *key, position)
            db.execute(update(table).where(which).values(message=replacement))
            added_bytes += len(payload) - content_size(stored)
        covering = and_(of_session(summaries, key), summaries.c.message_count > min(messages))
        added_bytes -= content_size(db.execute(select(summaries.c.text).where(covering)).scalar_one_or_none())
        db.execute(update(summaries).where(covering).values(text=sealed(db, summaries.c.text, "", *key)))
        add_bytes(db, _sessions, of_session(_sessions, key), added_bytes)

    def _check_no_turn_runs(self, db: Connection, key: SessionKey) -> None:
        holder = db.execute(select(_turns.c.request_id).where(of_session(_turns, key))).scalar_one_or_none()
        if holder is not None and self._keeps_turn(db, key, holder):
            raise _turn_runs(key)

    def _add_turn(self, db: Connection, key: SessionKey, turn: Sequence[Message], now_s: float) -> None:
        payloads = [message_to_proto(message).SerializeToString() for message in turn]
        self.touch(db, key, now_s, sum(ROW_BYTES + len(payload) for payload in payloads))
        messages = tables.messages
        last = db.execute(select(func.max(messages.c.position)).where(of_session(messages, key))).scalar_one()
        if last is None:
            last = -1
        rows = [
            key._asdict() | {"position": position, "message": payload}
            for position, payload in enumerate(payloads, start=last + 1)
        ]
        self._add_messages.run(db, rows)

    def touch(self, db: Connection, key: SessionKey, now_s: float, added_bytes: int = 0) -> None:
        """Create a conversation if it does not exist, set its time of last use, and add to its stored size."""
        made = self._insert(_sessions).values(
            **key._asdict(), created_at=now_s, updated_at=now_s, stored_bytes=ROW_BYTES + added_bytes
        )
        used = {"updated_at": made.excluded.updated_at, "stored_bytes": _sessions.c.stored_bytes + added_bytes}
        db.execute(made.on_conflict_do_update(index_elements=["tenant", "session_id"], set_=used))

    def take_turn(self, db: Connection, key: SessionKey, request_id: str) -> bool:
        """Give the session's turn to an execution, and return whether it has the turn.

        Another execution keeps the turn while it is running or may soon be resumed. Raises PreconditionFailed
        (ORCHESTRATION_TURN_WAITING) if that execution is parked.
        """
        insertion = self._insert(_turns).values(**key._asdict(), request_id=request_id).on_conflict_do_nothing()
        if db.execute(insertion.returning(_turns.c.session_id)).first() is not None:
            return True
        mine = of_session(_turns, key)
        holder = db.execute(select(_turns.c.request_id).where(mine)).scalar_one_or_none()
        if holder is None:  # The execution that had the turn has just ended.
            return self.take_turn(db, key, request_id)
        if holder != request_id and self._keeps_turn(db, key, holder):
            return False
        handed_over = update(_turns).where(mine, _turns.c.request_id == holder).values(request_id=request_id)
        return bool(db.execute(handed_over).rowcount)

    def _keeps_turn(self, db: Connection, session: SessionKey, request_id: str) -> bool:
        holder = ExecutionKey(session.tenant, request_id)
        is_fresh = _executions.c.interrupted_at > self._now_s() - self.interrupted_turn_s
        keeps = or_(IS_LIVE, IS_PARKED, and_(IS_INTERRUPTED, is_fresh))
        query = select(_executions.c.interrupted).where(of_execution(_executions, holder), keeps)
        state = db.execute(query).scalar_one_or_none()
        if state == PARKED:
            waits = tables.waits
            is_open = and_(of_execution(waits, holder), tables.IS_OPEN)
            wait_ids = db.execute(select(waits.c.wait_id).where(is_open).limit(MAX_NAMED_WAITS)).scalars()
            raise _turn_waits(session, request_id, list(wait_ids))
        return state is not None


def _turn_runs(key: SessionKey) -> Aborted:
    return Aborted(
        f"another turn of session {key.session_id!r} runs: send this one again when it has ended", retry_after_s=1.0
    )


def _turn_waits(key: SessionKey, request_id: str, wait_ids: Sequence[str]) -> PreconditionFailed:
    return PreconditionFailed(
        f"the turn of session {key.session_id!r} belongs to execution {request_id!r}, which is parked and waits for "
        f"{', '.join(map(repr, wait_ids)) or 'its time'}: end these waits, or cancel the execution",
        code=ErrorCode.ORCHESTRATION_TURN_WAITING,
    )


def _is_keyed(table: Table) -> ColumnElement[bool]:
    """Return the condition that selects the rows of an execution; `_named` supplies the parameters."""
    return and_(table.c.tenant == bindparam("key_tenant"), table.c.request_id == bindparam("key_id"))


def _named(key: ExecutionKey) -> dict[str, str]:
    return {"key_tenant": key.tenant, "key_id": key.request_id}


def _row_of(record: ExecutionRecord) -> dict[str, Any]:
    return {
        "tenant": record.tenant,
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
        "background": int(record.is_background),
    }


def _bytes_by_execution(rows: Sequence[Mapping[str, Any]], *columns: str) -> Counter[tuple[str, str]]:
    """Return the stored size, in bytes, of rows with these content columns, by tenant and request id."""
    sizes: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sizes[row["tenant"], row["request_id"]] += ROW_BYTES + sum([len(row[column]) for column in columns])
    return sizes


def _kept_rows(record: ExecutionRecord) -> list[dict[str, Any]]:
    if record.kept is None:
        return []
    kept = {"request": record.kept.encoded, "metadata_json": metadata_to_json(record.kept.metadata)}
    return [record.key._asdict() | kept]


def metadata_to_json(metadata: Mapping[str, str]) -> bytes:
    """Encode metadata as JSON."""
    return json.dumps(dict(metadata), ensure_ascii=False).encode()


def _state_row(record: ExecutionRecord, event_bytes: int) -> dict[str, Any]:
    """Return the columns of an execution's state, and the size of its events and, once it has ended, of its outcome."""
    last_error = _serialized(encode_optional(record.last_failure, failure_to_proto))
    response = _serialized(encode_optional(record.response, response_to_proto))
    outcome_bytes = 0 if response is None else len(response) + len(last_error or b"")
    return {
        **_named(record.key),
        "state": record.state.value,
        "entered_at": record.entered_at.timestamp(),
        "attempt": record.attempt,
        "total_steps": record.total_steps,
        "last_step": record.last_step,
        "last_error": last_error,
        "response": response,
        "added_bytes": event_bytes + outcome_bytes,
    }


def _serialized(message: ProtoMessage | None) -> bytes | None:
    if message is None:
        return None
    return message.SerializeToString()


def _event_rows(writes: Sequence[Write]) -> list[dict[str, Any]]:
    return [
        {
            **write.record.key._asdict(),
            "sequence": event.sequence,
            "event": event_to_proto(event).SerializeToString(),
        }
        for write in writes
        for event in write.events
    ]


def _entry_rows(writes: Sequence[Write], done: Collection[ExecutionKey]) -> list[dict[str, Any]]:
    """Return the rows of the entries, except for executions that no longer need entries."""
    return [
        _entry_row(write.record.key, position, entry)
        for write in writes
        if write.record.key not in done
        for position, entry in enumerate(write.entries, start=write.position)
    ]


def _entry_row(key: ExecutionKey, position: int, entry: Entry) -> dict[str, Any]:
    return {**key._asdict(), "position": position, "entry": entry_to_json(entry)}


def _total_rows(totals: Sequence[UsageTotal]) -> list[dict[str, Any]]:
    return [
        {"tenant": usage.tenant, "session_id": usage.session_id, "model": usage.model, "subject": usage.subject}
        | {name: getattr(usage, name) for name in _SUMS}
        # The order is fixed, so that orchestrators that update the same rows do not deadlock.
        for usage in sorted(totals, key=lambda total: (total.tenant, total.session_id, total.model, total.subject))
    ]
