"""A service's database: its URL, its connections, and the translation of its errors.

`name` identifies the database in messages, such as "the journal".
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unavailable

CONNECT_TIMEOUT_S = 5
RETRY_AFTER_S = 1.0
# A database server does not report its free space, so each tenant may use this much unless a setting says otherwise.
SERVER_BYTES = 16 * 1024**3
# A row takes this much in addition to its content, for its key, its other columns and its index entries.
ROW_BYTES = 128
ANSWER_TIMEOUT_S = 10  # The limit on a statement, on the wait for a lock, and on an unresponsive network.
# Only reads may use BEGIN. A writer needs BEGIN IMMEDIATE, because it cannot upgrade while another transaction writes.
READING = {"is_reading": True}
CONFLICTS = ("40P01", "40001", "55P03")  # PostgreSQL: deadlock_detected, serialization_failure, lock_not_available
_REFUSED = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|unsupported startup parameter"
    r"|(?:role|database|user) .* does not exist|no such (?:user|database)|SASL authentication failed"
    r"|login failed|is not permitted to log in|permission denied for database|SSL.* required|does not support SSL"
)
READ_ONLY = "25006"
_SEVERAL_HOSTS = re.compile(
    r"(?P<before>[^:/]+://(?:[^@/?]*@)?)(?P<hosts>[^@/?]*,[^@/?]*)(?P<path>(?:/[^?]*)?)(?P<options>(?:[?].*)?)"
)
_HOST = re.compile(r"\[?(?P<name>[^\[\]:]*|(?<=\[)[^\[\]]*)\]?(?::(?P<port>\d*))?")
_SET = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS given (name, value)"
_UNANSWERED = (OperationalError, InterfaceError, PendingRollbackError, PoolTimeoutError)
_UNANSWERED_BY_DRIVER = (sqlite3.OperationalError, psycopg.OperationalError, psycopg.InterfaceError)


def check_url(url: str, name: str) -> URL:
    """Return a database's URL with its driver. Raises InvalidRequest if the URL is invalid.

    Several servers may be named in libpq's form, `postgresql://a:5432,b:5432/name`.
    """
    try:
        parsed_url = make_url(_hosts_as_options(url))
    except (ArgumentError, ValueError):
        raise InvalidRequest(f"{name}'s URL is not a database URL: sqlite:///PATH or postgresql://…") from None
    match parsed_url.get_backend_name():
        case "sqlite" if parsed_url.database in (None, "", ":memory:"):
            raise InvalidRequest(f"{name}'s URL does not name a file: sqlite:///PATH")
        case "sqlite":
            return parsed_url.set(drivername="sqlite+pysqlite")
        case "postgresql" | "postgres":
            return parsed_url.set(drivername="postgresql+psycopg")
        case other:
            raise InvalidRequest(f"{name}'s URL is of {other!r}: it must be sqlite or postgresql")


def _hosts_as_options(url: str) -> str:
    """Return a URL with several hosts in the form that SQLAlchemy reads, with the hosts as options."""
    several = _SEVERAL_HOSTS.fullmatch(url)
    hosts = [_HOST.fullmatch(host) for host in several["hosts"].split(",")] if several else []
    matches = [host for host in hosts if host]
    if several is None or len(matches) < len(hosts):
        return url
    names, ports = (",".join(host[part] or "" for host in matches) for part in ("name", "port"))
    return f"{several['before']}{several['path']}?host={names}&port={ports}{several['options'].replace('?', '&', 1)}"


def open_engine(
    url: URL, name: str, *, pool_size: int, survives_power_loss: bool, session_settings: Mapping[str, str]
) -> Engine:
    """Return an engine without open connections. Creates the folder of a SQLite file.

    Args:
        url: The database, as returned by check_url.
        name: Name of the database in messages.
        pool_size: Maximum number of connections.
        survives_power_loss: Whether a commit waits for the disk.
        session_settings: Additional settings for connections to PostgreSQL.
    """
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, name, pool_size, survives_power_loss=survives_power_loss)
    commit = {False: "off", True: "on"}[survives_power_loss]
    timeout_ms = ANSWER_TIMEOUT_S * 1000
    settings = {
        "statement_timeout": timeout_ms,
        "lock_timeout": timeout_ms,
        "synchronous_commit": commit,
        **session_settings,
        # The server must notice a dead client host. Otherwise, the locks of its clients would outlive it by hours.
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 3,
    }
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": timeout_ms,
        "keepalives_idle": ANSWER_TIMEOUT_S,
    }
    engine = create_engine(url, pool_size=pool_size, pool_pre_ping=True, hide_parameters=True, connect_args=arguments)

    def set_up(connection: psycopg.Connection[Any], _record: object) -> None:
        # These are set after connecting, because connection poolers refuse or drop settings in startup parameters.
        connection.execute(_SET, [list(settings), [str(value) for value in settings.values()]])
        connection.commit()

    event.listen(engine, "connect", set_up)
    event.listen(engine, "handle_error", _leave_read_only)
    return engine


def _leave_read_only(context: ExceptionContext) -> None:
    """Drop all connections to a server that has become a standby, so that new connections can find the primary."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def is_refused(error: Exception) -> bool:
    """Return whether a server answers but refuses this user, this database or these options."""
    return _REFUSED.search(str(error)) is not None


def is_conflict(error: Exception) -> bool:
    """Return whether transactions blocked each other through a deadlock or a lock timeout."""
    return getattr(_cause_of(error), "sqlstate", None) in CONFLICTS


def translate_error(error: Exception, name: str, code: ErrorCode) -> Exception:
    """Return Unavailable, without the SQL statement, if the database does not answer, or else the same error."""
    cause = _cause_of(error)
    is_damaged = type(cause) is sqlite3.DatabaseError  # The file is damaged.
    is_standby = getattr(cause, "sqlstate", None) == READ_ONLY
    if not is_damaged and not is_standby and not isinstance(error, (*_UNANSWERED, *_UNANSWERED_BY_DRIVER)):
        return error
    reason, *_ = [*str(cause).strip().splitlines(), "no reason given"]
    return Unavailable(f"{name}'s database does not answer: {reason}", code=code, retry_after_s=RETRY_AFTER_S)


@contextlib.contextmanager
def translating_errors(name: str, code: ErrorCode) -> Iterator[None]:
    """Raise translated errors instead of the errors of the database."""
    try:
        yield
    except Exception as error:
        if (other := translate_error(error, name, code)) is not error:
            raise other from None
        raise


def room_bytes(db: Connection) -> int:
    """Return the number of bytes that a database can still take, or SERVER_BYTES for a server.

    A SQLite file can use the free space of its volume, and its own unused pages, because the file does not shrink.
    """
    if db.dialect.name != "sqlite":
        return SERVER_BYTES
    unused, size = (db.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("freelist_count", "page_size"))
    return int(shutil.disk_usage(Path(str(db.engine.url.database)).parent).free + unused * size)


def _open_sqlite(url: URL, name: str, pool_size: int, *, survives_power_loss: bool) -> Engine:
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{name}'s folder cannot be made: {error.strerror}") from None
    engine = create_engine(url, pool_size=pool_size, hide_parameters=True, connect_args={"timeout": ANSWER_TIMEOUT_S})
    synchronous = {False: "NORMAL", True: "FULL"}[survives_power_loss]

    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # SQLAlchemy, not the driver, begins and ends transactions.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")

    event.listen(engine, "connect", set_up)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _begin_sqlite(db: Connection) -> None:
    # While another transaction writes, SQLite refuses a transaction that begins with a read and then writes.
    if db.get_execution_options().keys() & READING:
        db.exec_driver_sql("BEGIN")
    else:
        db.exec_driver_sql("BEGIN IMMEDIATE")


def _cause_of(error: Exception) -> BaseException:
    """Return the driver's error that SQLAlchemy wraps, or the same error if it is not wrapped."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error
