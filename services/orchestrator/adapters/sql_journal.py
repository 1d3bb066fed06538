"""Journal in a database by URL: a SQLite file of one orchestrator, or a PostgreSQL that several share.

One thread writes, in groups, one reads, one tells that this owner lives, and one forgets what is old.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.messages import Message
from services.orchestrator.adapters import journal_reads as reads
from services.orchestrator.adapters.group_commit import GroupCommit, Work
from services.orchestrator.adapters.journal_database import (
    READING,
    OwnerLock,
    check_url,
    open_engine,
    translating_errors,
)
from services.orchestrator.adapters.journal_purge import Purger, forget_sessions
from services.orchestrator.adapters.journal_schema import migrate
from services.orchestrator.adapters.journal_space import JournalSpace
from services.orchestrator.adapters.journal_writes import Admission, Writes
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.request import Mode
from services.orchestrator.ports.journal import (
    Durability,
    ExecutionRecord,
    Page,
    Pulse,
    SessionRecord,
    UsageTotal,
    Write,
)

ResultT = TypeVar("ResultT")

_OPENING = Lock()  # the migration tool has one context per process, and a file is given its write-ahead log once


class SqlJournal:
    """The journal of one owner. What that owner ran before is interrupted when it is opened."""

    def __init__(
        self,
        url: str,
        *,
        owner: str = "local",
        retention_s: float = 86_400.0,
        session_retention_s: float = 0.0,
        durability: Durability = Durability.POWER,
    ) -> None:
        self._url = check_url(url)
        self._owner = owner
        self._durability = durability
        self._retention_s = retention_s
        self._session_retention_s = session_retention_s
        self._writes = Writes(owner, self._url.get_dialect()())
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-reader")
        self._beating = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-beats")
        self._stack = contextlib.ExitStack()
        self._is_open = False
        self._engine: Engine
        self._group: GroupCommit
        self._purger: Purger
        self.space: JournalSpace

    async def open(self) -> None:
        """Connect and bring the tables up to date.

        Raises Unavailable when the database cannot be reached, PreconditionFailed when another process is this owner.
        """
        await asyncio.get_running_loop().run_in_executor(self._reading, self._open)
        self._group = GroupCommit(self._engine, self._writes)
        self._purger = Purger(self._engine, self._retention_s, self._session_retention_s)
        self.space = JournalSpace(self._engine)
        self._purger.start(self.space.ask)
        self._is_open = True

    async def close(self) -> None:
        """Disconnect, after what still waits to be written; nobody waits for this owner's beats any more."""
        if not self._is_open:
            return
        self._is_open = False
        await self._purger.close()
        self._beating.shutdown()
        with contextlib.suppress(Unavailable):
            await self._commit(lambda db: self._writes.unregister_owner(db, time.time()))
        await self._group.close()
        self._reading.shutdown()
        self._stack.close()

    async def admit(
        self, record: ExecutionRecord, admitted: Admitted, *, takes_turn: bool = False
    ) -> ExecutionRecord | None:
        """See the port."""
        found: ExecutionRecord | None = await self._commit(Admission(record, admitted, takes_turn))
        return found

    def admit_new(self, record: ExecutionRecord, admitted: Admitted) -> Awaitable[None]:
        """See the port."""
        return self._group.submit(Admission(record, admitted, has_new_id=True), can_wait=True)

    async def admit_again(
        self, record: ExecutionRecord, admitted: Admitted, ended: ExecutionRecord, *, takes_turn: bool = False
    ) -> int | None:
        """See the port."""
        admission = Admission(record, admitted, takes_turn)
        after: int | None = await self._commit(lambda db: self._writes.admit_again(db, admission, ended))
        return after

    async def after_sequence(self, request_id: str) -> int:
        """See the port."""
        return await self._read(lambda db: reads.after_sequence(db, request_id))

    def write(self, write: Write, *, can_wait: bool = False) -> Awaitable[None]:
        """See the port."""
        return self._group.submit(write, can_wait=can_wait)

    async def take_turn(self, session_id: str, request_id: str) -> bool:
        """See the port."""
        return bool(await self._commit(lambda db: self._writes.take_turn(db, session_id, request_id)))

    async def claim(self, request_id: str) -> bool:
        """See the port."""
        return bool(await self._commit(lambda db: self._writes.claim(db, request_id)))

    async def request_cancel(self, request_id: str) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.request_cancel(db, request_id))

    async def beat(self) -> Pulse:
        """See the port."""
        pulse = await asyncio.get_running_loop().run_in_executor(self._beating, self._beat_now)
        if self._group.failure:
            await self._commit(self._writes.beat)  # whether it is mended shows by trying
        return pulse

    @property
    def write_failure(self) -> str:
        """See the port."""
        return self._group.failure if self._is_open else "it is closed"

    async def interrupt(self, owner: str, beat: int) -> bool:
        """See the port."""
        now_s = time.time()
        return bool(await self._commit(lambda db: self._writes.interrupt(db, owner, beat, now_s)))

    async def release(self, request_ids: Sequence[str]) -> None:
        """See the port."""
        now_s = time.time()
        await self._commit(lambda db: self._writes.release(db, request_ids, now_s))

    async def update_state(self, session_id: str, values: Mapping[str, str], removed: Sequence[str]) -> SessionRecord:
        """See the port."""
        now_s = time.time()
        updated: SessionRecord = await self._commit(
            lambda db: self._writes.update_state(db, session_id, values, removed, now_s)
        )
        return updated

    async def put_summary(self, session_id: str, summary: Summary) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.put_summary(db, session_id, summary))

    async def get_summary(self, session_id: str) -> Summary | None:
        """See the port."""
        return await self._read(lambda db: reads.get_summary(db, session_id))

    async def delete_session(self, session_id: str) -> None:
        """See the port."""
        forgotten = await self._purger.forget_session(session_id)
        deleted = await self._commit(lambda db: forget_sessions(db, [session_id]))
        if not forgotten and not deleted:
            raise reads.no_session(session_id)

    async def get(self, request_id: str) -> ExecutionRecord:
        """See the port."""
        return await self._read(lambda db: reads.get(db, request_id))

    async def list_executions(
        self, *, limit: int, after: str, session_id: str, state: State | None
    ) -> Page[ExecutionRecord]:
        """See the port."""
        return await self._read(
            lambda db: reads.list_executions(db, limit=limit, after=after, session_id=session_id, state=state)
        )

    async def interrupted(self, mode: Mode) -> list[str]:
        """See the port."""
        return await self._read(lambda db: reads.interrupted(db, mode))

    async def timeline(self, request_id: str, after: int = 0, limit: int = 0) -> list[Event]:
        """See the port."""
        return await self._read(lambda db: reads.timeline(db, request_id, after, limit))

    async def timeline_page(self, request_id: str, after: int, limit: int, max_bytes: int) -> tuple[list[Event], bool]:
        """See the port."""
        return await self._read(lambda db: reads.timeline_page(db, request_id, after, limit, max_bytes))

    async def entries(self, request_id: str) -> list[Entry]:
        """See the port."""
        return await self._read(lambda db: reads.entries(db, request_id))

    async def history(self, session_id: str, max_bytes: int = 0) -> tuple[int, tuple[Message, ...]]:
        """See the port."""
        return await self._read(lambda db: reads.history(db, session_id, max_bytes))

    async def get_session(
        self, session_id: str, limit: int = 0, *, before: int = 0, max_bytes: int = 0
    ) -> SessionRecord:
        """See the port."""
        return await self._read(lambda db: reads.get_session(db, session_id, limit, before=before, max_bytes=max_bytes))

    async def session_state(self, session_id: str) -> Mapping[str, str]:
        """See the port."""
        return await self._read(lambda db: reads.state_of(db, session_id))

    async def list_sessions(self, *, limit: int, after: str) -> Page[SessionRecord]:
        """See the port."""
        return await self._read(lambda db: reads.list_sessions(db, limit, after))

    async def add_usage(self, used: UsageTotal) -> None:
        """See the port."""
        await self._commit(lambda db: self._writes.add_usage(db, [used]))

    async def usage_totals(
        self, *, session_id: str | None, model: str | None, limit: int, after: str
    ) -> Page[UsageTotal]:
        """See the port."""
        return await self._read(lambda db: reads.usage_totals(db, session_id, model, limit, after))

    async def _commit(self, work: Work) -> Any:
        return await self._group.submit(work)

    async def _read(self, work: Callable[[Connection], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._read_now, work)

    def _read_now(self, work: Callable[[Connection], ResultT]) -> ResultT:
        with translating_errors(), self._engine.execution_options(**READING).connect() as db:
            return work(db)

    def _beat_now(self) -> Pulse:
        with translating_errors(), self._engine.begin() as db:
            return self._writes.beat(db)

    def _open(self) -> None:
        with translating_errors(), contextlib.ExitStack() as stack:
            self._engine = open_engine(self._url, self._durability)
            stack.callback(self._engine.dispose)
            stack.callback(OwnerLock(self._engine, self._owner).release)
            with _OPENING, self._engine.begin() as db:
                migrate(db)
                self._writes.register_owner(db, time.time())
            self._stack = stack.pop_all()
