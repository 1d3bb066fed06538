"""Group commit: work queued during a transaction shares the next transaction.

Invariants:
    1. The writes of one caller are stored in order, or fail.
    2. If a write of an execution fails, its later writes fail too: nothing is stored after a gap.
    3. If one work item fails, only that item is rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine

from pagantic_common.domain.errors import Unavailable
from pagantic_common.storage.database import is_conflict
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_counter, make_histogram
from pagantic_common.telemetry.names import (
    ORCHESTRATOR_JOURNAL_FAILED_WRITES,
    ORCHESTRATOR_JOURNAL_WRITE_DURATION,
)
from services.orchestrator.adapters.journal.changes.hub import topic_of
from services.orchestrator.adapters.journal.database import translate_error
from services.orchestrator.adapters.journal.upkeep.owner_lock import OwnerLock
from services.orchestrator.adapters.journal.writes import NewExecution, Writes
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.ports.journal import Write

LINGER_S = 0.005  # maximum delay of a deferrable write

write_duration = make_histogram(
    ORCHESTRATOR_JOURNAL_WRITE_DURATION, "how long transactions of the journal took", unit="s", bounds=DURATION_BOUNDS_S
)
failed_writes = make_counter(ORCHESTRATOR_JOURNAL_FAILED_WRITES, "transactions of the journal that failed")

Work = NewExecution | Write | Callable[[Connection], Any]


class _Waiting(NamedTuple):
    work: Work
    done: asyncio.Future[Any]
    changed: Sequence[str]


class GroupCommit:
    """Queues work, and commits it in groups on the writer's thread.

    Attributes:
        failure: Reason that the last transaction failed; empty if it succeeded.
        is_fenced: Whether another process may be this owner. If so, nothing is written.
    """

    def __init__(
        self, engine: Engine, writes: Writes, on_commit: Callable[[Collection[str]], None], lock: OwnerLock
    ) -> None:
        self._engine = engine
        self._writes = writes
        self._on_commit = on_commit
        self._lock = lock
        self.failure = ""
        self.is_fenced = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-writer")
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        failed_writes.add(0)  # Start the counter at 0, because a rate would miss the first failure.

    def submit(self, work: Work, *, can_wait: bool = False, changed: Sequence[str] = ()) -> asyncio.Future[Any]:
        """Queue work for the next transaction, and return a future that resolves after the commit.

        With `can_wait`, the work does not start a transaction immediately.
        `changed` names the topics changed by work other than writes and admissions.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Waiting(work, done, changed))
        if not can_wait:
            self._begin()
        elif self._writer is None and self._timer is None:
            self._timer = loop.call_later(LINGER_S, self._begin)
        return done

    async def close(self) -> None:
        """Write the queued work, and end the thread."""
        self._begin()
        while self._writer is not None:
            await self._writer
        self._thread.shutdown()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writer is None and self._waiting:
            self._writer = asyncio.create_task(self._write_groups())

    async def _write_groups(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                outcomes = await self._outcomes_of([write.work for write in group])
                self._end_all(group, outcomes)
        finally:
            self._writer = None

    async def _outcomes_of(self, works: Sequence[Work]) -> list[Any]:
        """Write a group on the thread, and return the result or the exception of each work item."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            outcomes = await loop.run_in_executor(self._thread, self._write_group, works)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            outcomes = [translate_error(error)] * len(works)
            self.failure = str(translate_error(error))
            failed_writes.add(1)
        else:
            self.failure = ""
        write_duration.record(loop.time() - started_s)
        return outcomes

    def _end_all(self, group: Sequence[_Waiting], outcomes: Sequence[Any]) -> None:
        changed: set[str] = set()
        for write, outcome in zip(group, outcomes, strict=True):
            self._end(write.work, write.done, outcome)
            if not isinstance(outcome, Exception):
                changed.update(write.changed or _changed_by(write.work))
        self._on_commit(changed)

    def _end(self, work: Work, done: asyncio.Future[Any], outcome: Any) -> None:
        _settle(done, outcome)
        if isinstance(work, Write | NewExecution) and isinstance(outcome, Exception):
            self._fail_after(work.record.key, outcome)

    def _fail_after(self, key: ExecutionKey, error: Exception) -> None:
        """Fail the queued writes of an execution after a failed write."""
        behind = [write for write in self._waiting if _is_of(write.work, key)]
        self._waiting = [write for write in self._waiting if not _is_of(write.work, key)]
        for write in behind:
            _settle(write.done, error)

    def _write_group(self, works: Sequence[Work]) -> list[Any]:
        """Run all work in one transaction. Return each result, or the exception that rolled a single item back."""
        if self.is_fenced:
            raise Unavailable(
                "another process may run under the name of this orchestrator: nothing is written", retry_after_s=1.0
            )
        with self._engine.connect() as db:
            self._lock.hold_if_doubtful()  # An error of the lock fails the whole group at once.
            try:
                with db.begin():
                    return self._write_together(db, works)
            except Exception as error:
                does_not_answer = translate_error(error) is not error
                if does_not_answer and not is_conflict(error):
                    raise
            with db.begin():  # Run the items one by one, to find the failing item.
                self._lock.hold_if_doubtful()  # The connection may have been reopened, which loses the lock.
                return self._write_each(db, works)

    def _write_together(self, db: Connection, works: Sequence[Work]) -> list[Any]:
        """Write the admissions first, then the writes, each kind in a few statements, and finally all other work."""
        self._admit_together(db, [work for work in works if isinstance(work, NewExecution)])
        if writes := [work for work in works if isinstance(work, Write)]:
            self._writes.write_all(db, writes)
        return [_call(work, db) for work in works]

    def _admit_together(self, db: Connection, admissions: Sequence[NewExecution]) -> None:
        if any(admission.takes_turn for admission in admissions):
            raise _NotTogetherError
        if admissions and self._writes.admit_all(db, admissions) != len(admissions):
            raise _NotTogetherError

    def _write_each(self, db: Connection, works: Sequence[Work]) -> list[Any]:
        failed: dict[ExecutionKey, Exception] = {}
        outcomes: list[Any] = []
        for work in works:
            if not isinstance(work, Write | NewExecution):
                outcomes.append(self._write_one(db, work))
                continue
            key = work.record.key
            outcome = failed.get(key) or self._write_one(db, work)
            if isinstance(outcome, Exception):
                failed[key] = outcome
            outcomes.append(outcome)
        return outcomes

    def _write_one(self, db: Connection, work: Work) -> Any:
        try:
            with db.begin_nested():
                match work:
                    case NewExecution():
                        return self._writes.admit(db, work)
                    case Write():
                        return self._writes.write_all(db, [work])
                    case _:
                        return work(db)
        except Exception as error:
            if translate_error(error) is not error:
                raise
            return error


class _NotTogetherError(Exception):
    """Raised if a group's admissions must be written separately, because some may have to be rejected."""


def _call(work: Work, db: Connection) -> Any:
    """Call the work if it is a function. Admissions and writes have already run."""
    if isinstance(work, NewExecution | Write):
        return None
    return work(db)


def _changed_by(work: Work) -> tuple[str, ...]:
    """Return the topics that a write changes: the execution, and the conversation if the write ends its turn."""
    if not isinstance(work, Write):
        return ()
    record = work.record
    if record.response is None or not record.session_id:
        return (topic_of(record.key),)
    return topic_of(record.key), topic_of(record.session_key)


def _is_of(work: Work, key: ExecutionKey) -> bool:
    return isinstance(work, Write) and work.record.key == key


def _settle(done: asyncio.Future[Any], outcome: Any) -> None:
    if done.done():  # The caller was cancelled.
        return
    if isinstance(outcome, Exception):
        done.set_exception(outcome)
    else:
        done.set_result(outcome)
