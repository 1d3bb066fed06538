"""Purges old executions and conversations in batches, on a separate thread and a separate connection."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Engine, Select, and_, delete, func, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite

from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.adapters.journal import schema as tables
from services.orchestrator.adapters.journal.database import translating_errors
from services.orchestrator.adapters.journal.rows import IS_INTERRUPTED, IS_PARKED, among, of_session
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey

PURGED_AT_ONCE = 200
PURGE_INTERVAL_S = 60.0
FIRST_PURGE_S = 10.0  # startup delay, during which old executions may still be resumed
RETRY_S = 5.0  # delay after a failed purge
ANSWER_TIMEOUT_S = 30  # timeout of a PostgreSQL statement; long, because no caller waits for the purge

_executions, _sessions = tables.executions, tables.sessions
_KEY = (_executions.c.tenant, _executions.c.request_id)
log = get_logger(__name__)


class Purger:
    """Purges executions, conversations and audit records that are older than their retention, once a minute.

    Keys are deleted if they expired or were revoked before the retention of audit records. After a failure, the purger
    retries soon, with half the batch size. Conversations without a retention are kept.
    """

    def __init__(
        self,
        engine: Engine,
        retention_s: float,
        session_retention_s: float,
        audit_retention_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._now_s = now_s
        self._retention_s = retention_s
        self._session_retention_s = session_retention_s
        self._audit_retention_s = audit_retention_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-purger")
        self._task: asyncio.Task[None] | None = None
        self._at_once = PURGED_AT_ONCE

    def start(self, afterwards: Callable[[], None] = lambda: None) -> None:
        """Start the periodic purge, and call `afterwards` after each purge."""
        self._task = asyncio.create_task(self._live(afterwards))

    async def close(self) -> None:
        """Stop after the current batch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def purge(self) -> None:
        """Purge everything that is too old. Raises the error of the database if a purge fails."""
        now_s = self._now_s()
        await self._repeat(lambda db: forget_old_executions(db, now_s - self._retention_s, self._at_once))
        if self._session_retention_s:
            oldest_s = now_s - self._session_retention_s
            await self._repeat(lambda db: forget_old_sessions(db, oldest_s, self._at_once))
        if self._audit_retention_s < math.inf:
            oldest_us = round((now_s - self._audit_retention_s) * 1_000_000)
            await self._repeat(lambda db: forget_old_audit_records(db, oldest_us, self._at_once))
            await self._repeat(lambda db: forget_old_keys(db, oldest_us / 1_000_000, self._at_once))

    async def forget_session(self, key: SessionKey) -> int:
        """Delete the executions of a conversation that are not running, and return their number."""
        return await self._repeat(lambda db: forget_executions_of(db, key, self._at_once))

    async def _live(self, afterwards: Callable[[], None]) -> None:
        await asyncio.sleep(FIRST_PURGE_S)
        while True:
            try:
                await self.purge()
                await asyncio.get_running_loop().run_in_executor(self._thread, afterwards)
            except Exception as error:  # noqa: BLE001 - the purger retries after any error
                self._at_once = max(1, self._at_once // 2)
                log.warning("the journal was not purged", reason=str(error), next_batch=self._at_once)
                await asyncio.sleep(RETRY_S)
            else:
                self._at_once = PURGED_AT_ONCE
                await asyncio.sleep(PURGE_INTERVAL_S)

    async def _repeat(self, forget: Callable[[Connection], int]) -> int:
        """Purge in batches until nothing is left, and return the total. Pauses between batches let the writer work."""
        count = 0
        while True:
            started_s = time.monotonic()
            purged_count = await asyncio.get_running_loop().run_in_executor(self._thread, self._in_transaction, forget)
            count += purged_count
            if purged_count == 0:
                return count
            await asyncio.sleep(time.monotonic() - started_s)

    def _in_transaction(self, forget: Callable[[Connection], int]) -> int:
        with translating_errors(), self._engine.begin() as db:
            if self._engine.dialect.name == "postgresql":
                db.execute(text(f"SET LOCAL statement_timeout = {ANSWER_TIMEOUT_S * 1000}"))
            return forget(db)


def forget_old_executions(db: Connection, oldest_s: float, limit: int) -> int:
    """Delete the oldest executions that ended or were interrupted before a time, and return their number."""
    has_ended = and_(_executions.c.response.is_not(None), _executions.c.entered_at < oldest_s)
    is_given_up = and_(IS_INTERRUPTED, _executions.c.interrupted_at < oldest_s)
    count = 0
    for is_old, moment in ((has_ended, _executions.c.entered_at), (is_given_up, _executions.c.interrupted_at)):
        query = select(*_KEY).where(is_old).order_by(moment).limit(limit - count)
        count += forget_executions(db, _executions_of(db, query))
    return count


def forget_executions_of(db: Connection, key: SessionKey, limit: int) -> int:
    """Delete the ended, interrupted and parked executions of a conversation, and return their number."""
    has_stopped = or_(_executions.c.response.is_not(None), IS_INTERRUPTED, IS_PARKED)
    query = select(*_KEY).where(of_session(_executions, key), has_stopped).limit(limit)
    return forget_executions(db, _executions_of(db, query))


def forget_old_sessions(db: Connection, oldest_s: float, limit: int) -> int:
    """Delete conversations last used before a time, unless a running turn or a parked execution needs them.

    Returns their number.
    """
    turns = tables.turns.c
    in_use = select(turns.tenant).where(turns.tenant == _sessions.c.tenant, turns.session_id == _sessions.c.session_id)
    is_its = and_(_executions.c.tenant == _sessions.c.tenant, _executions.c.session_id == _sessions.c.session_id)
    parked = select(_executions.c.ordinal).where(is_its, IS_PARKED)
    is_old = and_(_sessions.c.updated_at < oldest_s, ~in_use.exists(), ~parked.exists())
    query = select(_sessions.c.tenant, _sessions.c.session_id).where(is_old).order_by(_sessions.c.updated_at)
    rows = db.execute(query.limit(limit).with_for_update(skip_locked=True))
    return forget_sessions(db, [SessionKey(*row) for row in rows])


def forget_sessions(db: Connection, keys: Sequence[SessionKey]) -> int:
    """Delete conversations with their messages, values and summaries, and return their number.

    Their usage stays in the totals of their tenants, models and subjects.
    """
    if not keys:
        return 0
    # A turn that ends meanwhile waits for these locks and then recreates the conversation, so that every message has a
    # session.
    in_order = select(_sessions.c.session_id).where(among(_sessions, keys)).order_by(*_sessions.primary_key)
    db.execute(in_order.with_for_update()).all()
    for table in (tables.messages, tables.session_state, tables.summaries):
        db.execute(delete(table).where(among(table, keys)))
    _fold_usage(db, keys)
    return db.execute(delete(_sessions).where(among(_sessions, keys))).rowcount


def _fold_usage(db: Connection, keys: Sequence[SessionKey]) -> None:
    """Move the usage of conversations to the totals without a session: one row for each tenant, model and subject."""
    totals = tables.usage_totals
    sums = [column.name for column in totals.c if not column.primary_key]
    folded: defaultdict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for row in db.execute(delete(totals).where(among(totals, keys)).returning(totals)).mappings():
        folded[row["tenant"], row["model"], row["subject"]].update({name: row[name] for name in sums})
    if not folded:
        return
    insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[db.dialect.name]
    made = insert(totals)
    added = made.on_conflict_do_update(
        index_elements=list(totals.primary_key), set_={name: totals.c[name] + made.excluded[name] for name in sums}
    )
    # The order matches the writer's statements, so that orchestrators that update the same rows do not deadlock.
    for (tenant, model, subject), used in sorted(folded.items(), key=itemgetter(0)):
        db.execute(added, {"tenant": tenant, "session_id": "", "model": model, "subject": subject, **used})


def forget_old_audit_records(db: Connection, oldest_us: int, limit: int) -> int:
    """Delete each chain's records up to a time, except the chain's last record, and return their number."""
    records = tables.audit_records.c
    count = 0
    for owner in _chain_owners(db):
        chain = select(records.position, records.at_us).where(records.owner == owner).order_by(records.position)
        rows = db.execute(chain.limit(limit + 1)).all()
        old = [row.position for row in takewhile(lambda row: row.at_us < oldest_us, rows[:limit])]
        old = [position for position in old if position < rows[-1].position]
        if old:
            is_old = and_(records.owner == owner, records.position <= old[-1])
            count += db.execute(delete(tables.audit_records).where(is_old)).rowcount
    return count


def forget_old_keys(db: Connection, oldest_s: float, limit: int) -> int:
    """Delete keys that expired or were revoked before a time, and return their number."""
    keys = tables.api_keys.c
    old = select(keys.key_id).where((keys.expires_at < oldest_s) | (keys.revoked_at < oldest_s)).limit(limit)
    return db.execute(delete(tables.api_keys).where(keys.key_id.in_(old))).rowcount


def _chain_owners(db: Connection) -> Iterator[str]:
    """Yield the owners of chains, each by one index look-up, because DISTINCT would read the whole index."""
    records, owner = tables.audit_records.c, ""
    while (owner := db.execute(select(func.min(records.owner)).where(records.owner > owner)).scalar_one()) is not None:
        yield owner


def _executions_of(db: Connection, found: Select[tuple[str, str]]) -> list[ExecutionKey]:
    """Lock the executions of a query and return their keys."""
    return [ExecutionKey(row.tenant, row.request_id) for row in db.execute(found.with_for_update(skip_locked=True))]


def forget_executions(db: Connection, keys: Sequence[ExecutionKey]) -> int:
    """Delete executions with all their data except their usage, and return their number."""
    if not keys:
        return 0
    for table in (tables.events, tables.entries, tables.waits, tables.signals, tables.turns, tables.kept_requests):
        db.execute(delete(table).where(among(table, keys)))
    return db.execute(delete(_executions).where(among(_executions, keys))).rowcount
