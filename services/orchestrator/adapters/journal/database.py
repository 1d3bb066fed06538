"""The journal's database: its URL, its connections, and the translation of its errors."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed, Unavailable
from services.orchestrator.ports.journal import Durability

CONNECT_TIMEOUT_S = 5
POOL_SIZE = 7  # writer, reader, keys, budgets, the audit's reader, beats and purge
ANSWER_TIMEOUT_S = 10  # for a statement, for a lock, and for a silent network
# Only reads may use BEGIN: a writer needs BEGIN IMMEDIATE, as it cannot upgrade while another one writes.
READING = {"is_reading": True}
EVERY_TENANT = "*"  # row-level security shows such a transaction all rows
CONFLICTS = ("40P01", "40001", "55P03")  # PostgreSQL: deadlock_detected, serialization_failure, lock_not_available
_UNANSWERED = (OperationalError, InterfaceError, PendingRollbackError, PoolTimeoutError)
_UNANSWERED_BY_DRIVER = (sqlite3.OperationalError, psycopg.OperationalError, psycopg.InterfaceError)


def check_url(url: str) -> URL:
    """Return a database's URL with its driver; raises InvalidRequest for an invalid URL."""
    try:
        found = make_url(url)
    except ArgumentError:
        raise InvalidRequest("the journal's URL is not a database URL: sqlite:///PATH or postgresql://…") from None
    match found.get_backend_name():
        case "sqlite" if found.database in (None, "", ":memory:"):
            raise InvalidRequest("the journal's URL does not name a file: sqlite:///PATH")
        case "sqlite":
            return found.set(drivername="sqlite+pysqlite")
        case "postgresql" | "postgres":
            return found.set(drivername="postgresql+psycopg")
        case other:
            raise InvalidRequest(f"the journal's URL is of {other!r}: it must be sqlite or postgresql")


def open_engine(url: URL, durability: Durability) -> Engine:
    """Return a pool without open connections; makes the folder of a SQLite file."""
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, durability)
    commit = {Durability.PROCESS: "off", Durability.POWER: "on"}[durability]
    timeout_ms = ANSWER_TIMEOUT_S * 1000
    settings = {
        "statement_timeout": timeout_ms,
        "lock_timeout": timeout_ms,
        "synchronous_commit": commit,
        "pagantic.tenant": EVERY_TENANT,
        # The server must notice a dead host, or the owner's lock would outlive it by hours.
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 3,
    }
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "options": options,
        "tcp_user_timeout": timeout_ms,
        "keepalives_idle": ANSWER_TIMEOUT_S,
    }
    return create_engine(url, pool_size=POOL_SIZE, pool_pre_ping=True, hide_parameters=True, connect_args=arguments)


def check_options(db: Connection) -> None:
    """Raise PreconditionFailed when the options of connections to PostgreSQL got lost on the way."""
    if db.dialect.name != "postgresql":
        return
    if db.execute(text("SELECT current_setting('pagantic.tenant', true)")).scalar() != EVERY_TENANT:
        raise PreconditionFailed(
            "the database was not given the options of its connections, on which timeouts and row-level security "
            "depend: connect without a pooler that drops them"
        )


def see_only(db: Connection, tenant: str) -> None:
    """Show the rest of a transaction the rows of one tenant alone, where the database can."""
    if db.dialect.name == "postgresql":
        db.execute(text("SELECT set_config('pagantic.tenant', :tenant, true)"), {"tenant": tenant})


def _open_sqlite(url: URL, durability: Durability) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"the journal's folder cannot be made: {error.strerror}") from None
    engine = create_engine(url, pool_size=POOL_SIZE, hide_parameters=True, connect_args={"timeout": ANSWER_TIMEOUT_S})
    synchronous = {Durability.PROCESS: "NORMAL", Durability.POWER: "FULL"}[durability]

    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # SQLAlchemy begins and ends transactions, not the driver
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")

    event.listen(engine, "connect", set_up)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _begin_sqlite(db: Connection) -> None:
    # SQLite refuses a transaction that begins with a read and writes while another one writes.
    if db.get_execution_options().keys() & READING:
        db.exec_driver_sql("BEGIN")
    else:
        db.exec_driver_sql("BEGIN IMMEDIATE")


def is_conflict(error: Exception) -> bool:
    """Tell whether transactions blocked each other: a deadlock, or a lock timeout."""
    return getattr(_cause_of(error), "sqlstate", None) in CONFLICTS


def _cause_of(error: Exception) -> BaseException:
    """Return the driver's error."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def translate_error(error: Exception) -> Exception:
    """Return Unavailable for a database that does not answer, without its statement; any other error stays."""
    cause = _cause_of(error)
    is_damaged = type(cause) is sqlite3.DatabaseError  # a damaged file
    if not is_damaged and not isinstance(error, (*_UNANSWERED, *_UNANSWERED_BY_DRIVER)):
        return error
    reason, *_ = [*str(cause).strip().splitlines(), "no reason given"]
    return Unavailable(
        f"the journal's database does not answer: {reason}", code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
    )


@contextlib.contextmanager
def translating_errors() -> Iterator[None]:
    """Raise translated errors instead of the database's own."""
    try:
        yield
    except Exception as error:
        if (other := translate_error(error)) is not error:
            raise other from None
        raise
