"""Helpers for the journal's rows: conditions, decoding, bounded reads and size accounting.

The size of a content row is ROW_BYTES plus the bytes of its sealed columns before encryption. The row of an execution
or a session keeps the total of all its rows:

    executions.entry_bytes   its entries
    executions.stored_bytes  its own row, with the response and the last error once it has ended, and its events,
                             waits, signals and kept request
    sessions.stored_bytes    its own row, and its messages, values and summary

Every statement that changes a content row updates the total in the same transaction. Deleting an execution or a
session deletes its total, so a tenant's bytes are the sum over its executions and sessions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, Table, and_, or_, select, update

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import failure_from_proto
from pagantic_common.codec.messages import message_from_proto
from pagantic_common.domain.errors import Failure, InvalidRequest, NotFound
from pagantic_common.domain.messages import Message
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.storage.database import ROW_BYTES
from services.orchestrator.adapters.journal.schema import executions, kept_requests, messages
from services.orchestrator.adapters.journal.sealing import SealedBytes, SealedText, content_size, opened
from services.orchestrator.convert.response import response_from_proto
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.core.model.request import KeptRequest, Mode
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import ExecutionRecord

READ_AT_ONCE = 50  # rows

RUNS, INTERRUPTED, PARKED = range(3)  # values of executions.interrupted
IS_LIVE = and_(executions.c.response.is_(None), executions.c.interrupted == RUNS)
IS_INTERRUPTED = and_(executions.c.response.is_(None), executions.c.interrupted == INTERRUPTED)
IS_PARKED = and_(executions.c.response.is_(None), executions.c.interrupted == PARKED)
_NOT_READ = (
    *("ordinal", "response", "owner", "cancel_requested", "interrupted_at", "after_sequence"),
    *("stored_bytes", "entry_bytes"),
)
RECORD = [column for column in executions.c if column.name not in _NOT_READ]


def of_execution(table: Table, key: ExecutionKey) -> ColumnElement[bool]:
    """Return the condition that selects the rows of an execution."""
    return and_(table.c.tenant == key.tenant, table.c.request_id == key.request_id)


def of_session(table: Table, key: SessionKey) -> ColumnElement[bool]:
    """Return the condition that selects the rows of a conversation."""
    return and_(table.c.tenant == key.tenant, table.c.session_id == key.session_id)


def among(table: Table, keys: Sequence[ExecutionKey] | Sequence[SessionKey]) -> ColumnElement[bool]:
    """Return the condition that selects the rows of several executions, or of several conversations.

    The condition groups the keys by tenant, because SQLite uses no index for pairs.
    """
    ids: dict[str, list[str]] = {}
    for tenant, record_id in keys:
        ids.setdefault(tenant, []).append(record_id)
    name = type(keys[0])._fields[1]
    return or_(*(and_(table.c.tenant == tenant, table.c[name].in_(some)) for tenant, some in ids.items()))


def content_bytes(db: Connection, table: Table, which: ColumnElement[bool]) -> int:
    """Return the size of content rows in bytes. Reads their content, because sealing changes the size."""
    columns = [column for column in table.c if isinstance(column.type, SealedBytes | SealedText)]
    rows = db.execute(select(*columns).where(which))
    return sum(ROW_BYTES + sum(map(content_size, row)) for row in rows)


def hold(db: Connection, table: Table, which: ColumnElement[bool]) -> bool:
    """Block other changes of an execution or a session until the transaction ends; return whether it exists."""
    return db.execute(select(table.c.stored_bytes).where(which).with_for_update()).first() is not None


def add_bytes(db: Connection, table: Table, which: ColumnElement[bool], size: int) -> None:
    """Add to the stored size of an execution or a session."""
    db.execute(update(table).where(which).values(stored_bytes=table.c.stored_bytes + size))


def get_record(db: Connection, key: ExecutionKey) -> ExecutionRecord:
    """Return an execution with its response and its request. Raises NotFound if it does not exist."""
    query = select(*RECORD, executions.c.response).where(of_execution(executions, key))
    row = db.execute(query).mappings().first()
    if row is None:
        raise NotFound(f"no execution has request_id {key.request_id!r}")
    record = replace(record_of(db, row), kept=_kept_of(db, key))
    if row["response"] is None:
        return record
    response = opened(db, executions.c.response, row["response"], *key)
    return replace(record, response=response_from_proto(execution_pb2.SystemResponse.FromString(response)))


def _kept_of(db: Connection, key: ExecutionKey) -> KeptRequest | None:
    kept = kept_requests.c
    row = db.execute(select(kept.request, kept.metadata_json).where(of_execution(kept_requests, key))).first()
    if row is None:
        return None
    metadata = opened(db, kept.metadata_json, row.metadata_json, *key)
    return KeptRequest(opened(db, kept.request, row.request, *key), json.loads(metadata))


def record_of(db: Connection, row: RowMapping) -> ExecutionRecord:
    """Return the record in a row with the columns of RECORD."""
    return ExecutionRecord(
        request_id=row["request_id"],
        session_id=row["session_id"],
        trace_id=row["trace_id"],
        mode=Mode(row["mode"]),
        started_at=moment_of(row["started_at"]),
        state=State(row["state"]),
        entered_at=moment_of(row["entered_at"]),
        attempt=row["attempt"],
        fingerprint=row["fingerprint"],
        total_steps=row["total_steps"],
        last_step=row["last_step"],
        last_failure=_failure_of(db, row),
        is_interrupted=row["interrupted"] == INTERRUPTED,
        wakes_at=moment_of(row["wakes_at"]) if row["interrupted"] == PARKED else None,
        parked_s=row["parked_s"],
        is_background=bool(row["background"]),
        tenant=row["tenant"],
    )


def _failure_of(db: Connection, row: RowMapping) -> Failure | None:
    if row["last_error"] is None:
        return None
    stored = opened(db, executions.c.last_error, row["last_error"], row["tenant"], row["request_id"])
    return failure_from_proto(error_pb2.SystemError.FromString(stored))


def stored_message(db: Connection, key: SessionKey, position: int, stored: bytes) -> Message:
    """Return the message at a position of a conversation in its stored form."""
    return message_of(opened(db, messages.c.message, stored, *key, position))


def message_of(stored: bytes) -> Message:
    """Decode a message."""
    return message_from_proto(message_pb2.Message.FromString(stored))


def moment_of(seconds: float) -> datetime:
    """Return a stored time as a datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def read_within(db: Connection, found: Select[Any], limit: int, max_bytes: int) -> tuple[list[Row[Any]], bool]:
    """Return the first rows within the limits, and whether more rows exist. Reads no further rows.

    At least one row is returned, even if it exceeds the limits. `max_bytes` limits the total content of the first
    column, which is sealed.
    """
    page: list[Row[Any]] = []
    left_bytes = max_bytes
    with db.execute(found.execution_options(yield_per=READ_AT_ONCE)) as rows:
        for row in rows:
            left_bytes -= content_size(row[0])
            if page and (len(page) >= limit or left_bytes < 0):
                return page, True
            page.append(row)
    return page, False


def wrong_token(token: str) -> InvalidRequest:
    """Return the error for an invalid page token."""
    return InvalidRequest(f"page_token {token[:40]!r} is not one that this service gave")


def token_of(*names: str) -> str:
    """Return the page token of a list that continues after these names."""
    return json.dumps(names, ensure_ascii=False)


def read_token(token: str, count: int | None) -> list[str]:
    """Return the names in a page token: exactly `count` names, or at least one if `count` is None.

    Raises InvalidRequest if the token is invalid.
    """
    try:
        names = parse_json(token, is_rewritable=True)
    except JsonTextError:
        names = None
    if not isinstance(names, list) or not names or len(names) != (count or len(names)):
        raise wrong_token(token)
    if not all(isinstance(name, str) and "\0" not in name for name in names):
        raise wrong_token(token)
    return names
