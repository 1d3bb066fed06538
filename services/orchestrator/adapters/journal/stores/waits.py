"""Stores the waits and the signals of executions in the journal's database.

The stored content of a signal is the digest of its name and payload, followed by the payload while the signal is kept.
The digest identifies a repeated signal after its payload is gone. Each change locks the row of the execution, so that
storing a signal and parking the execution that waits for it exclude each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, or_, select, update

from pagantic.orchestrator.v1 import approval_pb2, wait_pb2
from pagantic_common.domain.errors import Conflict, NotFound, Overloaded, PreconditionFailed
from pagantic_common.storage.database import ROW_BYTES
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.changes.hub import topic_of
from services.orchestrator.adapters.journal.rows import (
    IS_PARKED,
    add_bytes,
    of_execution,
    read_token,
    read_within,
    token_of,
    wrong_token,
)
from services.orchestrator.adapters.journal.schema import IS_OPEN, OPEN, OPEN_APPROVAL, executions, signals, waits
from services.orchestrator.adapters.journal.sealing import content_size, opened, sealed
from services.orchestrator.convert.wait import approval_from_proto, approval_to_proto, wait_from_proto, wait_to_proto
from services.orchestrator.core.execution.wait import MAX_KEPT_SIGNALS, MAX_SIGNALS, Resolution, Signal, Wait, WaitKind
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.ports.page import Page
from services.orchestrator.ports.waits import WaitStore

_DIGEST_BYTES = 32
MAX_PAGE_BYTES = 2 * 1024 * 1024
_OTHERS = [column for column in waits.c if column.name != waits.c.wait.name]
_HAS_NOT_ENDED = and_(
    executions.c.tenant == waits.c.tenant,
    executions.c.request_id == waits.c.request_id,
    executions.c.response.is_(None),
)


class SqlWaits(JournalAccess, WaitStore):
    """Waits and signals by execution and id. A page token contains the time, execution and id of the last wait."""

    async def begin_wait(self, key: ExecutionKey, wait: Wait) -> Wait:
        stored: Wait = await self._commit(lambda db: self._begin(db, key, wait))
        return stored

    async def get_wait(self, key: ExecutionKey, wait_id: str) -> Wait:
        return await self._read(key.tenant, lambda db: _wait_of(db, _row(db, key, wait_id)))

    async def resolve_wait(self, key: ExecutionKey, wait_id: str, resolution: Resolution) -> Wait:
        now_s = self._now_s()
        resolved: Wait = await self._commit(
            lambda db: _resolve(db, key, wait_id, resolution, now_s), changed=[topic_of(key)]
        )
        return resolved

    async def list_waits(
        self, *, tenant: str, limit: int, after: str, request_id: str, kinds: Collection[WaitKind]
    ) -> Page[Wait]:
        at, execution, wait_id = waits.c.began_at, waits.c.request_id, waits.c.wait_id
        query = select(waits.c.wait, *_OTHERS).join(executions, _HAS_NOT_ENDED).order_by(at, execution, wait_id)
        query = query.where(waits.c.tenant == tenant, IS_OPEN, waits.c.kind.in_(list(kinds)))
        if request_id:
            query = query.where(execution == request_id)
        if after:
            after_s, *names = _place_of(after)
            is_later = and_(at == after_s, or_(execution > names[0], and_(execution == names[0], wait_id > names[1])))
            query = query.where(or_(at > after_s, is_later))
        return await self._read(tenant, lambda db: _page(db, query, limit))

    async def first_wait(self, key: ExecutionKey, name: str) -> Wait | None:
        def read(db: Connection) -> Wait | None:
            wait_id = _first_open(db, key, name)
            return None if wait_id is None else _wait_of(db, _row(db, key, wait_id))

        return await self._read(key.tenant, read)

    async def add_signal(self, key: ExecutionKey, signal: Signal) -> None:
        now_s = self._now_s()
        await self._commit(lambda db: self._add(db, key, signal, now_s), changed=[topic_of(key)])

    async def signal_digest(self, key: ExecutionKey, signal_id: str) -> bytes | None:
        return await self._read(key.tenant, lambda db: _digest_of(db, key, signal_id))

    async def next_signal(self, key: ExecutionKey, name: str) -> Signal | None:
        query = select(signals).where(of_execution(signals, key), signals.c.name == name, signals.c.is_kept == 1)
        query = query.order_by(signals.c.ordinal).limit(1)
        return await self._read(key.tenant, lambda db: _signal_of(db, key, db.execute(query).first()))

    async def take_signal(self, key: ExecutionKey, wait_id: str, resolution: Resolution) -> Wait:
        now_s = self._now_s()
        taken: Wait = await self._commit(lambda db: _take(db, key, wait_id, resolution, now_s))
        return taken

    async def drop_signal(self, key: ExecutionKey, wait_id: str, signal_id: str) -> bool:
        return bool(await self._commit(lambda db: _settle(db, key, wait_id, signal_id)))

    def _begin(self, db: Connection, key: ExecutionKey, wait: Wait) -> Wait:
        _hold(db, key)
        row = db.execute(select(waits).where(_of_wait(key, wait.id))).first()
        stored = None if row is None else _wait_of(db, row)
        if stored is not None and stored.is_for(wait):
            return stored
        content = _encoded(wait)
        values: dict[str, Any] = {
            "tenant": key.tenant,
            "request_id": key.request_id,
            "wait_id": wait.id,
            "kind": wait.kind.value,
            "name": wait.name if wait.takes_signals else "",
            "began_at": wait.began_at.timestamp(),
            "is_open": OPEN_APPROVAL if wait.kind is WaitKind.APPROVAL else OPEN,
            "wait": sealed(db, waits.c.wait, content, *key, wait.id),
        }
        added = self._insert(waits).values(values)
        updated = {waits.c[name]: value for name, value in values.items()}
        db.execute(added.on_conflict_do_update(index_elements=list(waits.primary_key), set_=updated))
        earlier_bytes = 0 if row is None else ROW_BYTES + content_size(row.wait)
        add_bytes(db, executions, of_execution(executions, key), ROW_BYTES + len(content) - earlier_bytes)
        return wait

    def _add(self, db: Connection, key: ExecutionKey, signal: Signal, now_s: float) -> None:
        has_ended = _hold(db, key)
        digest = _digest_of(db, key, signal.id)
        if digest == signal.digest:
            return
        if digest is not None:
            raise Conflict(f"signal_id {signal.id!r} was used for another name or payload")
        if has_ended:
            raise PreconditionFailed(f"execution {key.request_id!r} has ended, so it takes no signals")
        counts = select(func.count(), func.coalesce(func.sum(signals.c.is_kept), 0)).where(of_execution(signals, key))
        count, kept_count = db.execute(counts).one()
        if kept_count >= MAX_KEPT_SIGNALS or count >= MAX_SIGNALS:
            raise Overloaded(
                f"execution {key.request_id!r} has {count} signals, of which {kept_count} are kept: it keeps at most "
                f"{MAX_KEPT_SIGNALS}, and takes at most {MAX_SIGNALS}"
            )
        content = signal.digest + signal.payload_json.encode()
        values = {
            "signal_id": signal.id,
            "ordinal": count,
            "name": signal.name,
            "subject": signal.subject,
            "is_kept": 1,
            "signal": sealed(db, signals.c.signal, content, *key, signal.id),
        }
        db.execute(self._insert(signals).values(key._asdict() | values))
        add_bytes(db, executions, of_execution(executions, key), ROW_BYTES + len(content))
        if _first_open(db, key, signal.name) is not None:
            _make_due(db, key, now_s)


def _of_wait(key: ExecutionKey, wait_id: str) -> Any:
    return and_(of_execution(waits, key), waits.c.wait_id == wait_id)


def _hold(db: Connection, key: ExecutionKey) -> bool:
    """Hold off other changes of an execution, and return whether it has ended. Raises NotFound if it does not exist."""
    query = select(executions.c.response.is_not(None)).where(of_execution(executions, key)).with_for_update()
    has_ended = db.execute(query).scalar_one_or_none()
    if has_ended is None:
        raise NotFound(f"no execution has request_id {key.request_id!r}")
    return bool(has_ended)


def _first_open(db: Connection, key: ExecutionKey, name: str) -> str | None:
    """Return the id of the open wait that takes the next signal of a name, or None."""
    query = select(func.min(waits.c.wait_id)).where(of_execution(waits, key), IS_OPEN, waits.c.name == name)
    first: str | None = db.execute(query).scalar_one()
    return first


def _of_signal(key: ExecutionKey, signal_id: str) -> Any:
    return and_(of_execution(signals, key), signals.c.signal_id == signal_id)


def _digest_of(db: Connection, key: ExecutionKey, signal_id: str) -> bytes | None:
    stored = db.execute(select(signals.c.signal).where(_of_signal(key, signal_id))).scalar_one_or_none()
    return None if stored is None else opened(db, signals.c.signal, stored, *key, signal_id)[:_DIGEST_BYTES]


def _page(db: Connection, query: Select[Any], limit: int) -> Page[Wait]:
    rows, has_more = read_within(db, query.limit(limit + 1), limit, MAX_PAGE_BYTES)
    page = [_wait_of(db, row) for row in rows]
    if not has_more:
        return Page(page)
    last = rows[-1]
    return Page(page, token_of(last.began_at.hex(), last.request_id, last.wait_id))


def _encoded(wait: Wait) -> bytes:
    if wait.kind is WaitKind.APPROVAL:
        return approval_to_proto(wait).SerializeToString()
    return wait_to_proto(wait).SerializeToString()


def _wait_of(db: Connection, row: Row[Any]) -> Wait:
    content = opened(db, waits.c.wait, row.wait, row.tenant, row.request_id, row.wait_id)
    if row.kind == WaitKind.APPROVAL:
        return approval_from_proto(approval_pb2.Approval.FromString(content))
    return wait_from_proto(wait_pb2.Wait.FromString(content))


def _row(db: Connection, key: ExecutionKey, wait_id: str) -> Row[Any]:
    row = db.execute(select(waits).where(_of_wait(key, wait_id))).first()
    if row is None:
        raise NotFound(f"no call {wait_id!r} of execution {key.request_id!r} needs an approval")
    return row


def _resolve(db: Connection, key: ExecutionKey, wait_id: str, resolution: Resolution, now_s: float) -> Wait:
    has_ended = _hold(db, key)
    row = _row(db, key, wait_id)
    wait = _wait_of(db, row)
    if wait.resolution is not None:
        return wait
    if has_ended:
        raise PreconditionFailed(f"execution {key.request_id!r} has ended, so its calls need no approval")
    resolved = wait.resolved(resolution)
    content = _encoded(resolved)
    stored = sealed(db, waits.c.wait, content, *key, wait_id)
    db.execute(update(waits).where(_of_wait(key, wait_id)).values(is_open=0, wait=stored))
    add_bytes(db, executions, of_execution(executions, key), len(content) - content_size(row.wait))
    _make_due(db, key, now_s)
    return resolved


def _make_due(db: Connection, key: ExecutionKey, now_s: float) -> None:
    """Make a parked execution due, so that any orchestrator can wake it."""
    db.execute(update(executions).where(of_execution(executions, key), IS_PARKED).values(wakes_at=now_s))


def _take(db: Connection, key: ExecutionKey, wait_id: str, resolution: Resolution, now_s: float) -> Wait:
    if not _settle(db, key, wait_id, resolution.signal_id):
        return _wait_of(db, _row(db, key, wait_id))
    return _resolve(db, key, wait_id, resolution, now_s)


def _settle(db: Connection, key: ExecutionKey, wait_id: str, signal_id: str) -> bool:
    """Delete the payload of a kept signal, unless another open wait comes first. Return whether it was deleted."""
    _hold(db, key)
    is_kept = and_(_of_signal(key, signal_id), signals.c.is_kept == 1)
    row = db.execute(select(signals).where(is_kept)).first()
    if row is None or _first_open(db, key, row.name) != wait_id:
        return False
    digest = opened(db, signals.c.signal, row.signal, *key, signal_id)[:_DIGEST_BYTES]
    stored = sealed(db, signals.c.signal, digest, *key, signal_id)
    db.execute(update(signals).where(is_kept).values(is_kept=0, signal=stored))
    add_bytes(db, executions, of_execution(executions, key), _DIGEST_BYTES - content_size(row.signal))
    return True


def _signal_of(db: Connection, key: ExecutionKey, row: Row[Any] | None) -> Signal | None:
    if row is None:
        return None
    content = opened(db, signals.c.signal, row.signal, *key, row.signal_id)
    return Signal(row.signal_id, row.name, content[_DIGEST_BYTES:].decode(), content[:_DIGEST_BYTES], row.subject)


def _place_of(token: str) -> tuple[float, str, str]:
    moment, request_id, wait_id = read_token(token, 3)
    try:
        moment_s = float.fromhex(moment)
    except (ValueError, OverflowError):
        raise wrong_token(token) from None
    if not math.isfinite(moment_s):
        raise wrong_token(token)
    return moment_s, request_id, wait_id
