"""Stores the audit log in the journal's database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from sqlalchemy import Connection, select, tuple_

from pagantic_common.domain.calls.audit import START, AuditEntry, AuditRecord, follow
from pagantic_common.domain.clock import Clock
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import wrong_token
from services.orchestrator.adapters.journal.schema import audit_records
from services.orchestrator.adapters.journal.writes import CompiledStatement
from services.orchestrator.ports.audit import AuditStore
from services.orchestrator.ports.page import Page

MAX_DIGITS = 18  # A number with at most this number of digits fits into 64 bits.
_table = audit_records.c
log = get_logger(__name__)


class SqlAudit(JournalAccess, AuditStore):
    """Audit records by owner and position. A page token contains the position and the owner of the last record.

    Attributes:
        audit_key: Keys the digests; if it is empty, the digests are unkeyed.
    """

    def __init__(self, url: str, owner: str, clock: Clock) -> None:
        super().__init__(url, owner, clock)
        self.audit_key = b""
        self._add_record = CompiledStatement(self._insert(audit_records), self._dialect)
        self._listing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-audit")
        # The last position and digest of this owner's chain; None until they are read. The chain has no other writer.
        self._head: tuple[int, bytes] | None = None

    def add_audit_entry(self, entry: AuditEntry, *, can_wait: bool = False) -> Awaitable[None]:
        stored = self._group.submit(lambda db: self._append(db, entry), can_wait=can_wait)
        stored.add_done_callback(_report)
        return stored

    async def list_audit_records(self, *, tenant: str, limit: int, after: str) -> Page[AuditRecord]:
        query = select(audit_records).order_by(_table.owner, _table.position).limit(limit + 1)
        if tenant:
            query = query.where(_table.tenant == tenant)
        if after:
            position, owner = _place_of(after)
            query = query.where(tuple_(_table.owner, _table.position) > (owner, position))
        read = partial(self._read_now, lambda db: db.execute(query).all())
        rows = await asyncio.get_running_loop().run_in_executor(self._listing, read)
        records = [_record_of(row) for row in rows[:limit]]
        if len(rows) <= limit:
            return Page(records)
        return Page(records, f"{records[-1].position}/{records[-1].owner}")

    def _forget_head(self, *_: object) -> None:
        """Clear the cached head, because its write may have been rolled back. Also called at the end of each read."""
        self._head = None

    def _append(self, db: Connection, entry: AuditEntry) -> None:
        position, previous = self._head or self._read_head(db)
        record = follow(self._owner, position + 1, previous, entry, self.audit_key)
        self._add_record.run(db, [_row_of(record)])
        self._head = record.position, record.digest

    def _read_head(self, db: Connection) -> tuple[int, bytes]:
        newest = select(_table.position, _table.digest).where(_table.owner == self._owner)
        last = db.execute(newest.order_by(_table.position.desc()).limit(1)).first()
        if last is None:
            return 0, START
        return last.position, bytes(last.digest)


def _report(queued: Any) -> None:
    if not queued.cancelled() and (error := queued.exception()) is not None:
        log.error("a record of the audit was not stored", reason=str(error))


def _row_of(record: AuditRecord) -> dict[str, Any]:
    entry = record.entry
    return {
        "owner": record.owner,
        "position": record.position,
        "at_us": entry.at_us,
        "tenant": entry.tenant,
        "subject": entry.subject,
        "kind": entry.kind,
        "key_id": entry.key_id,
        "method": entry.method,
        "resource": entry.resource,
        "request_id": entry.request_id,
        "decision": entry.decision,
        "code": entry.code,
        "previous": record.previous,
        "digest": record.digest,
    }


def _record_of(row: Any) -> AuditRecord:
    entry = AuditEntry(
        *(row.at_us, row.tenant, row.subject, row.kind, row.key_id, row.method, row.resource, row.request_id),
        row.decision,
        row.code,
    )
    return AuditRecord(row.owner, row.position, entry, bytes(row.previous), bytes(row.digest))


def _place_of(token: str) -> tuple[int, str]:
    position, separator, owner = token.partition("/")
    if (
        not separator
        or not position.isascii()
        or not position.isdecimal()
        or len(position) > MAX_DIGITS
        or "\0" in owner
    ):
        raise wrong_token(token)
    return int(position), owner
