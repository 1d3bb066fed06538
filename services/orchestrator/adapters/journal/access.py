"""Runs statements on the journal's threads: grouped writes on one thread, and concurrent reads on another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import postgresql, sqlite

from pagantic_common.domain.clock import Clock
from pagantic_common.storage.database import READING
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

ResultT = TypeVar("ResultT")


class Turns:
    """A thread that runs work items one at a time, alternating between tenants.

    The thread itself takes the next item, so that it never waits for a busy event loop. The number of queued items is
    bounded by the number of running calls.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._lock = Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()

    def submit(self, tenant: str, work: Callable[[], ResultT]) -> Future[ResultT]:
        """Queue a work item of a tenant. An item that is cancelled before it starts does not run."""
        future: Future[ResultT] = Future()
        with self._lock:
            self._waiting.setdefault(tenant, deque()).append((future, work))
            self._thread.submit(self._do_next)
        return future

    def _do_next(self) -> None:
        with self._lock:
            tenant, pieces = self._waiting.popitem(last=False)
            future, work = pieces.popleft()
            if pieces:
                self._waiting[tenant] = pieces  # This tenant moves to the end of the queue.
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - the future passes it to the caller
            future.set_exception(error)
            del future, work  # The traceback refers to this frame, which would keep the error and the work in memory.
        else:
            future.set_result(result)

    def close(self) -> None:
        """End the thread after all work is done."""
        self._thread.shutdown()


class JournalAccess(Changes):
    """The connections and threads through which one owner uses a journal."""

    def __init__(self, url: str, owner: str, clock: Clock) -> None:
        self._url = check_url(url)
        self._owner = owner
        self._clock = clock
        self._dialect = self._url.get_dialect()()
        self._insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[self._dialect.name]
        self._writes = Writes(owner, self._dialect, self._now_s)
        self._reading = Turns("journal-reader")
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
        """Run work that changes the topics in `changed`, and return its result after the commit."""
        return await self._group.submit(work, changed=changed)

    async def _read(self, tenant: str, work: Callable[[Connection], ResultT]) -> ResultT:
        """Read the rows of a tenant, or of all tenants for EVERY_TENANT. Reads alternate between tenants."""
        return await asyncio.wrap_future(self._reading.submit(tenant, lambda: self._read_now(work, tenant)))

    def _read_now(self, work: Callable[[Connection], ResultT], tenant: str = EVERY_TENANT) -> ResultT:
        with translating_errors(), self._engine.execution_options(**READING).connect() as db:
            if tenant != EVERY_TENANT:
                see_only(db, tenant)
            return work(db)
