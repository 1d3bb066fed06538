"""Stores the requests and metadata that are kept with executions, and deletes executions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, and_, select, update

from pagantic_common.domain.errors import PreconditionFailed
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import (
    READ_AT_ONCE,
    add_bytes,
    get_record,
    hold,
    of_execution,
    record_of,
)
from services.orchestrator.adapters.journal.schema import executions, kept_requests
from services.orchestrator.adapters.journal.sealing import content_size, opened, sealed
from services.orchestrator.adapters.journal.upkeep.purge import forget_executions
from services.orchestrator.adapters.journal.writes import metadata_to_json
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.model.request import KeptRequest
from services.orchestrator.core.model.request_check import check_metadata
from services.orchestrator.ports.journal import ExecutionRecord
from services.orchestrator.ports.page import Page

LOOKED_AT = 1000  # maximum number of executions scanned for a page
_METADATA = kept_requests.c.metadata_json


class SqlKept(JournalAccess):
    """Stores the requests and metadata that callers keep with their executions."""

    async def update_metadata(
        self, key: ExecutionKey, values: Mapping[str, str], removed: Sequence[str]
    ) -> ExecutionRecord:
        """Set and remove metadata, as described by the port."""
        updated: ExecutionRecord = await self._commit(lambda db: _update_metadata(db, key, values, removed))
        return updated

    async def delete_execution(self, key: ExecutionKey) -> None:
        """Delete an execution, as described by the port."""
        await self._commit(lambda db: _delete(db, key))


def page_by_metadata(
    db: Connection, found: Select[Any], metadata: Mapping[str, str], limit: int, max_bytes: int
) -> Page[ExecutionRecord]:
    """Return the first executions of a query whose kept metadata matches, with at most `max_bytes` of metadata.

    At least one execution is returned if any matches. The database cannot compare metadata, which may be encrypted.
    """
    is_its = and_(kept_requests.c.tenant == executions.c.tenant, kept_requests.c.request_id == executions.c.request_id)
    kept = found.add_columns(kept_requests.c.metadata_json).join(kept_requests, is_its)
    records: list[ExecutionRecord] = []
    count, last, page_bytes = 0, "", 0
    with db.execute(kept.limit(LOOKED_AT + 1).execution_options(yield_per=READ_AT_ONCE)) as rows:
        for row in rows.mappings():
            stored = opened(db, _METADATA, row["metadata_json"], row["tenant"], row["request_id"])
            of_row = json.loads(stored)
            if is_match := metadata.items() <= of_row.items():
                page_bytes += len(stored)
            if len(records) == limit or count == LOOKED_AT or (records and page_bytes > max_bytes):
                return Page(records, last)
            count, last = count + 1, str(row["ordinal"])
            if is_match:
                records.append(replace(record_of(db, row), kept=KeptRequest(b"", of_row)))
    return Page(records)


def _update_metadata(
    db: Connection, key: ExecutionKey, values: Mapping[str, str], removed: Sequence[str]
) -> ExecutionRecord:
    hold(db, executions, of_execution(executions, key))
    record = get_record(db, key)
    if record.kept is None:
        raise PreconditionFailed(f"execution {key.request_id!r} has no metadata: its request did not set keep_request")
    metadata = {name: value for name, value in record.kept.metadata.items() if name not in removed} | dict(values)
    check_metadata(metadata)
    which, stored = of_execution(kept_requests, key), metadata_to_json(metadata)
    earlier_bytes = content_size(db.execute(select(_METADATA).where(which)).scalar_one())
    db.execute(update(kept_requests).where(which).values(metadata_json=sealed(db, _METADATA, stored, *key)))
    add_bytes(db, executions, of_execution(executions, key), len(stored) - earlier_bytes)
    return replace(record, kept=replace(record.kept, metadata=metadata))


def _delete(db: Connection, key: ExecutionKey) -> None:
    hold(db, executions, of_execution(executions, key))  # a parked execution could be woken meanwhile
    record = get_record(db, key)
    if record.response is None and not record.is_interrupted and record.wakes_at is None:
        raise PreconditionFailed(f"execution {key.request_id!r} runs: cancel it first")
    forget_executions(db, [key])
