"""Runs statements on the journal's threads: grouped writes on one thread, and concurrent reads on another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import postgresql, sqlite

from pagantic_common.domain.clock import Clock
from pagantic_common.storage.database import READING
from pagantic_common.workers.fair_places import FairPlaces
from services.orchestrator.adapters.journal.changes.hub import Hub
from services.orchestrator.adapters.journal.database import (
    EVERY_TENANT,
    check_url,
    see_only,
    translating_errors,
)
from services.orchestrator.adapters.journal.group_commit import GroupCommit, Work
from services.orchestrator.adapters.journal.writes import Writes
from services.orchestrator.core.model.keys import ExecutionKey, SessionKey
from services.orchestrator.ports.changes import Changes, Watch

# One read runs, and further short ones are ready, so that the thread need not wait for a busy event loop.
MAX_READS = 8
MAX_WAITING_READS = 65_536  # This is more than the reads of all calls that may run.
ResultT = TypeVar("ResultT")


class JournalAccess(Changes):
    """The connections and threads through which one owner uses a journal."""

    def __init__(self, url: str, owner: str, clock: Clock) -> None:
        self._url = check_url(url)
        self._owner = owner
        self._clock = clock
        self._dialect = self._url.get_dialect()()
        self._insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[self._dialect.name]
        self._writes = Writes(owner, self._dialect, self._now_s)
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-reader")
        self._turns = FairPlaces(MAX_READS, waiting=MAX_WAITING_READS, resource="the reader of the journal")
        self._hub = Hub()
        self._is_open = False
        self._engine: Engine
        self._group: GroupCommit

    def watching(self, key: ExecutionKey | SessionKey) -> AbstractContextManager[Watch]:
        """Watch an execution or a conversation for changes."""
        return self._hub.watching(key)

    def _now_s(self) -> float:
        """Return the current time in seconds since the epoch."""
        return self._clock.now().timestamp()

    async def _commit(self, work: Work, *, changed: Sequence[str] = ()) -> Any:
        """Run work that changes the topics in `changed`, and return the result after the commit."""
        return await self._group.submit(work, changed=changed)

    async def _read(self, tenant: str, work: Callable[[Connection], ResultT]) -> ResultT:
        """Read the rows of a tenant, or of all tenants for EVERY_TENANT. Tenants take turns."""
        async with self._turns.place(None if tenant == EVERY_TENANT else tenant) as place:
            reading = self._reading.submit(self._read_now, work, tenant)
            place.keep_until(reading)  # The thread goes on if the caller leaves.
            return await asyncio.wrap_future(reading)

    def _read_now(self, work: Callable[[Connection], ResultT], tenant: str = EVERY_TENANT) -> ResultT:
        with translating_errors(), self._engine.execution_options(**READING).connect() as db:
            if tenant != EVERY_TENANT:
                see_only(db, tenant)
            return work(db)
