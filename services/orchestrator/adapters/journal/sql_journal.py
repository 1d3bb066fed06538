"""The journal in a database: a SQLite file of one orchestrator, or a PostgreSQL database shared by several.

It has seven threads: the writer, which writes in groups, the reader, the key look-up, the budgets, the audit listing,
the owner's heartbeats, and the purger. PostgreSQL adds a thread that sends messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
from pathlib import Path
from threading import Lock

from sqlalchemy import Engine, text
from sqlalchemy.event import listen

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import PreconditionFailed, Unavailable
from pagantic_common.storage.database import READING
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.adapters.journal.changes.hub import EVERYTHING
from services.orchestrator.adapters.journal.changes.notices import Notices
from services.orchestrator.adapters.journal.database import EVERY_TENANT, check_options, open_engine, translating_errors
from services.orchestrator.adapters.journal.group_commit import GroupCommit
from services.orchestrator.adapters.journal.identity.audit import SqlAudit
from services.orchestrator.adapters.journal.identity.budgets import SqlBudgets
from services.orchestrator.adapters.journal.identity.keys import SqlKeys
from services.orchestrator.adapters.journal.identity.usage import SqlUsage
from services.orchestrator.adapters.journal.schema import migrate
from services.orchestrator.adapters.journal.sealing import Sealing, set_sealing
from services.orchestrator.adapters.journal.stores.conversations import SqlConversations
from services.orchestrator.adapters.journal.stores.executions import SqlExecutions
from services.orchestrator.adapters.journal.stores.ownership import SqlOwnership
from services.orchestrator.adapters.journal.stores.storage import SqlStorage
from services.orchestrator.adapters.journal.stores.waits import SqlWaits
from services.orchestrator.adapters.journal.upkeep.owner_lock import OwnerLock
from services.orchestrator.adapters.journal.upkeep.purge import Purger
from services.orchestrator.ports.journal import Durability

_PARTS = ("", "-wal", "-shm")  # file suffixes of a SQLite database
_OPENING = Lock()  # Alembic has one context per process, and a new SQLite file can switch to WAL only once


class SqlJournal(
    SqlExecutions,
    SqlOwnership,
    SqlConversations,
    SqlUsage,
    SqlStorage,
    SqlWaits,
    SqlKeys,
    SqlBudgets,
    SqlAudit,
):
    """The journal of one owner. Opening it marks the owner's earlier running executions as interrupted."""

    def __init__(
        self,
        url: str,
        *,
        owner: str = "local",
        retention_s: float = 86_400.0,
        session_retention_s: float = 0.0,
        audit_retention_s: float = math.inf,
        audit_key: bytes = b"",
        interrupted_turn_s: float = 0.0,
        durability: Durability = Durability.POWER,
        sealing: Sealing | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, owner, clock or SystemClock())
        self._sealing = sealing or Sealing()
        set_sealing(self._dialect, self._sealing)
        self._durability = durability
        self._writes.interrupted_turn_s = interrupted_turn_s
        self._retention_s = retention_s
        self._session_retention_s = session_retention_s
        self._audit_retention_s = audit_retention_s
        self.audit_key = audit_key
        self._stack = contextlib.ExitStack()
        self._notices: Notices | None = None
        self.space: JournalSpace

    @property
    def is_served(self) -> bool:
        """Whether the database runs on a server, which may start later than this process."""
        return self._dialect.name == "postgresql"

    async def open(self) -> None:
        """Connect and migrate the tables.

        Raises Unavailable if the database cannot be reached, or PreconditionFailed if another process is this owner.
        """
        await asyncio.wrap_future(self._reading.submit(EVERY_TENANT, self._open))
        self._group = GroupCommit(self._engine, self._writes, self._hub.note, self._lock)
        if self._dialect.name == "postgresql":
            self._notices = Notices(self._engine, self._hub)
            self._notices.start()
            self._hub.note([EVERYTHING])  # Opening the journal may have interrupted executions.
        self._purger = Purger(
            self._engine, self._retention_s, self._session_retention_s, self._audit_retention_s, self._now_s
        )
        self.space = JournalSpace(self._engine)
        self._purger.start(self.space.ask)
        self._is_open = True

    async def close(self) -> None:
        """Write the queued work and disconnect. Other owners stop waiting for this owner's heartbeats."""
        if not self._is_open:
            return
        self._is_open = False
        await self._purger.close()
        self._beating.shutdown()
        with contextlib.suppress(Unavailable, PreconditionFailed):
            await self._commit(lambda db: self._unregister(db, self._now_s()), changed=[EVERYTHING])
        await self._group.close()
        if self._notices is not None:
            await self._notices.close()
        self._reading.close()
        self._looking.shutdown()
        self._spending.shutdown()
        self._listing.shutdown()
        self._stack.close()

    def _open(self) -> None:
        with translating_errors(), contextlib.ExitStack() as stack:
            self._engine = open_engine(self._url, self._durability)
            set_sealing(self._engine.dialect, self._sealing)
            for event in ("rollback", "rollback_savepoint", "handle_error"):
                listen(self._engine, event, self._forget_head)
            stack.callback(self._engine.dispose)
            self._lock = OwnerLock(self._engine, self._owner)
            stack.callback(self._lock.release)
            with _OPENING, self._engine.begin() as db:
                check_options(db)
                migrate(db)
                self._register(db, self._now_s())
            self._stack = stack.pop_all()


class JournalSpace:
    """Measures the journal's size: asks the file system about a SQLite file, or caches a server's last answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._path: Path | None = None
        if engine.dialect.name == "sqlite":
            self._path = Path(str(engine.url.database))
        self._server_bytes = math.nan

    def used_bytes(self) -> float:
        """Return the size of the database, or NaN while it is unknown."""
        if self._path is None:
            return self._server_bytes
        parts = [Path(f"{self._path}{part}") for part in _PARTS]
        return float(sum(part.stat().st_size for part in parts if part.exists()))

    def free_bytes(self) -> float | None:
        """Return the free space of the volume, or None for a database server."""
        if self._path is None:
            return None
        return float(shutil.disk_usage(self._path.parent).free)

    def ask(self) -> None:
        """Query the server for the size of its database. This call blocks."""
        if self._path is None:
            with self._engine.execution_options(**READING).connect() as db:
                self._server_bytes = float(db.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
