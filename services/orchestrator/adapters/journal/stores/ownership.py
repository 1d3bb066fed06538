"""Tracks the owner of each execution: the orchestrator that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select, update

from pagantic_common.domain.clock import Clock
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.changes.hub import EVERYTHING, topic_of
from services.orchestrator.adapters.journal.database import translating_errors
from services.orchestrator.adapters.journal.rows import IS_INTERRUPTED, IS_LIVE, IS_PARKED, PARKED, among, of_execution
from services.orchestrator.adapters.journal.schema import IS_OPEN, executions, owners, signals, waits
from services.orchestrator.adapters.journal.upkeep.owner_lock import OwnerLock
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.ports.journal import Ownership, Pulse

RELEASED_AT_ONCE = 1000  # bounds the number of parameters of a statement


class SqlOwnership(JournalAccess, Ownership):
    """Executions by their owners' names, and the owners' heartbeats, which use a separate thread."""

    def __init__(self, url: str, owner: str, clock: Clock) -> None:
        super().__init__(url, owner, clock)
        self._lock: OwnerLock
        self._beating = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-beats")

    async def claim(self, key: ExecutionKey) -> bool:
        now_s = self._now_s()
        return bool(await self._commit(lambda db: self._claim(db, key, now_s)))

    async def park(self, key: ExecutionKey, wakes_at: datetime, wait_ids: Collection[str]) -> bool:
        now_s = self._now_s()
        is_parked: bool = await self._commit(
            lambda db: self._park(db, key, wakes_at.timestamp(), wait_ids, now_s), changed=[topic_of(key)]
        )
        return is_parked

    async def request_cancel(self, key: ExecutionKey) -> None:
        statement = update(executions).where(of_execution(executions, key), IS_LIVE).values(cancel_requested=1)
        await self._commit(lambda db: db.execute(statement))

    async def beat(self) -> Pulse:
        try:
            pulse = await asyncio.get_running_loop().run_in_executor(self._beating, self._beat_now)
        finally:
            self._group.is_fenced = self._lock.is_refused
        if self._group.failure:
            await self._commit(self._beat)  # A write shows whether the failure has ended.
        return pulse

    @property
    def write_failure(self) -> str:
        """The reason that the last write failed, or an empty string if it succeeded."""
        if not self._is_open:
            return "it is closed"
        return self._group.failure

    async def interrupt(self, owner: str, beat: int) -> bool:
        now_s = self._now_s()
        return bool(await self._commit(lambda db: self._interrupt_dead(db, owner, beat, now_s), changed=[EVERYTHING]))

    async def release(self, keys: Sequence[ExecutionKey]) -> None:
        now_s = self._now_s()
        await self._commit(lambda db: self._release(db, keys, now_s), changed=[EVERYTHING])

    def _register(self, db: Connection, now_s: float) -> None:
        """Register this owner. Interrupts the executions of its predecessor and executions without an owner."""
        _interrupt(db, executions.c.owner.in_((self._owner, "")), now_s)
        self._beat(db)

    def _unregister(self, db: Connection, now_s: float) -> None:
        """Unregister this owner and interrupt its live executions."""
        _interrupt(db, executions.c.owner == self._owner, now_s)
        db.execute(delete(owners).where(owners.c.owner == self._owner))

    def _beat_now(self) -> Pulse:
        with translating_errors():
            self._lock.hold()
            with self._engine.begin() as db:
                return self._beat(db)

    def _beat(self, db: Connection) -> Pulse:
        mine = self._insert(owners).values(owner=self._owner, beat=1)
        db.execute(mine.on_conflict_do_update(index_elements=["owner"], set_={"beat": owners.c.beat + 1}))
        beats = {row.owner: row.beat for row in db.execute(select(owners))}
        query = select(executions.c.tenant, executions.c.request_id).where(
            executions.c.owner == self._owner, IS_LIVE, executions.c.cancel_requested == 1
        )
        return Pulse(beats, tuple(ExecutionKey(*row) for row in db.execute(query)))

    def _claim(self, db: Connection, key: ExecutionKey, now_s: float) -> int:
        mine = update(executions).where(of_execution(executions, key))
        interrupted = mine.where(IS_INTERRUPTED).values(owner=self._owner, interrupted=0)
        parked_s = executions.c.parked_s + now_s - executions.c.interrupted_at
        parked = mine.where(IS_PARKED).values(owner=self._owner, interrupted=0, wakes_at=None, parked_s=parked_s)
        return db.execute(interrupted).rowcount or db.execute(parked).rowcount

    def _park(
        self, db: Connection, key: ExecutionKey, wakes_at_s: float, wait_ids: Collection[str], now_s: float
    ) -> bool:
        is_mine = and_(executions.c.owner == self._owner, executions.c.cancel_requested == 0)
        mine = of_execution(executions, key), is_mine, IS_LIVE
        if db.execute(select(executions.c.ordinal).where(*mine).with_for_update()).first() is None:
            return False
        is_open = and_(of_execution(waits, key), waits.c.wait_id.in_(list(wait_ids)), IS_OPEN)
        if db.execute(select(func.count()).select_from(waits).where(is_open)).scalar_one() < len(wait_ids):
            return False
        expected = select(waits.c.name).where(is_open)
        sent = select(signals.c.signal_id).where(of_execution(signals, key), signals.c.is_kept == 1)
        if db.execute(sent.where(signals.c.name.in_(expected))).first() is not None:
            return False
        parked = {"interrupted": PARKED, "interrupted_at": now_s, "wakes_at": wakes_at_s}
        db.execute(update(executions).where(*mine).values(parked))
        return True

    def _interrupt_dead(self, db: Connection, owner: str, beat: int, now_s: float) -> bool:
        dead = and_(owners.c.owner == owner, owners.c.beat == beat)
        if not db.execute(delete(owners).where(dead)).rowcount:
            return False
        _interrupt(db, executions.c.owner == owner, now_s)
        return True

    def _release(self, db: Connection, keys: Sequence[ExecutionKey], now_s: float) -> None:
        for start in range(0, len(keys), RELEASED_AT_ONCE):
            some = keys[start : start + RELEASED_AT_ONCE]
            _interrupt(db, and_(executions.c.owner == self._owner, among(executions, some)), now_s)


def _interrupt(db: Connection, which: ColumnElement[bool], now_s: float) -> None:
    db.execute(update(executions).where(which, IS_LIVE).values(interrupted=1, interrupted_at=now_s))
