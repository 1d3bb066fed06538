"""The lock on an owner's name, which only one process can hold."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import time
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from sqlalchemy import Connection, Engine, text
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError

from pagantic_common.domain.errors import InvalidRequest, PreconditionFailed, Unavailable

# Maximum time that a process waits for its predecessor of the same name, or for its own lost connection, to end.
OWNER_TIMEOUT_S = 15.0

# A standby rejects txid_current() as it rejects a write (READ_ONLY), so all connections to it are discarded.
_BACKEND = text("SELECT pg_backend_pid(), CASE WHEN pg_is_in_recovery() THEN txid_current() END")


class OwnerLock:
    """A lock that the operating system or the database releases when the process ends.

    Raises PreconditionFailed if another process remains the owner, or the database's error if the database fails. A
    standby server also fails, because a lock on a standby has no effect on its primary.
    """

    def __init__(self, engine: Engine, owner: str) -> None:
        self._engine = engine
        self._owner = owner
        self._key = hashlib.sha256(owner.encode()).digest()[:8]
        self._stack = contextlib.ExitStack()
        self._session: Connection | None = None
        self._backend: int | None = None  # id of the server process that holds the lock
        self._refused_s: float | None = None  # time of the first refusal; None unless another process has the lock
        self._is_of_database = engine.dialect.name == "postgresql"
        self._newest: object = None  # markers: the newest connection, and the newest connection when the lock was held
        self._newest_held: object = None
        self._alone = Lock()
        if self._is_of_database:
            listen(engine, "connect", self._note_connection)
        take = self._take_file
        if self._is_of_database:
            take = self._take_session
        while not take():
            self._refuse()
            time.sleep(0.1)
        self._refused_s = None
        self._check_beside()

    def hold(self) -> None:
        """Reacquire the lock if the connection that held it has ended.

        Raises Unavailable while the lock is not available, and PreconditionFailed if another process keeps it.
        """
        if not self._is_of_database:
            return
        with self._alone:
            newest = self._newest
            self._hold()
            self._newest_held = newest  # Ignore connections opened since the check began.

    def hold_if_doubtful(self) -> None:
        """Call `hold` unless the lock was held after the newest connection was opened.

        A new connection may mean that the server ended all other connections, including the lock's connection.
        """
        if self._session is None or self._newest is not self._newest_held:
            self.hold()

    def _note_connection(self, *_connection: object) -> None:
        self._newest = object()

    def _hold(self) -> None:
        try:
            is_held = self._answers() or self._take_session()
        except DBAPIError:
            self._refused_s = None  # It is unknown which process holds the lock.
            raise
        if is_held:
            self._refused_s = None
            return
        self._refuse()
        raise Unavailable("the lock of this orchestrator's name is lost, and not yet taken again", retry_after_s=1.0)

    @property
    def is_refused(self) -> bool:
        """Whether another process held the lock at the last attempt."""
        return self._refused_s is not None

    def release(self) -> None:
        """Release the lock, so that another process can be this owner."""
        self._session = None
        self._stack.close()

    def _refuse(self) -> None:
        now_s = time.monotonic()
        if self._refused_s is None:
            self._refused_s = now_s
        if now_s - self._refused_s > OWNER_TIMEOUT_S:
            raise PreconditionFailed(
                f"another orchestrator runs as {self._owner!r} with this journal: give this one a name of its own "
                "(PAGANTIC_ORCHESTRATOR_INSTANCE_ID)"
            )

    def _answers(self) -> bool:
        """Return whether the connection that holds the lock is alive. Releases the lock if it is not."""
        if self._session is None:
            return False
        try:
            number = self._session.execute(_BACKEND).scalar()
        except DBAPIError:
            self.release()
            return False
        if number != self._backend:
            raise _pooled()
        return True

    def _check_beside(self) -> None:
        """Raise PreconditionFailed if a second connection uses the same server process, that is, if a pooler shares it.

        The lock is released if this check fails.
        """
        if self._session is None:
            return
        with contextlib.ExitStack() as stack:
            stack.callback(self.release)
            with self._engine.begin() as other:
                is_shared = other.execute(_BACKEND).scalar() == self._backend
            if is_shared:
                raise _pooled()
            stack.pop_all()

    def _take_session(self) -> bool:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(self._engine.connect()).execution_options(isolation_level="AUTOCOMMIT")
            backend = connection.execute(_BACKEND).scalar()
            number = int.from_bytes(self._key, signed=True)
            if not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": number}).scalar():
                return False
            connection.detach()  # The connection holds the lock, so it must not return to the pool.
            self._session, self._backend = connection, backend
            self._stack = stack.pop_all()
        return True

    def _take_file(self) -> bool:
        try:
            path = Path(f"{self._engine.url.database}-{self._key.hex()}.lock")
            lock: BinaryIO = path.open("wb")
        except OSError as error:
            raise InvalidRequest(f"the journal's folder cannot be written to: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._stack.callback(lock.close)
        return True


def _pooled() -> PreconditionFailed:
    return PreconditionFailed(
        "the database's pooler gives each transaction another connection of the server, so that locks, settings and "
        "LISTEN of connections are lost: use its session mode, or connect without it"
    )
