"""The journal's database: its connections, its row-level security, and its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import URL, Connection, Engine, text

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.storage import database
from services.orchestrator.ports.journal import Durability

NAME = "the journal"
POOL_SIZE = 8  # writer, reader, keys, budgets, audit reader, heartbeats, purge and messages
EVERY_TENANT = "*"  # Row-level security shows all rows to this tenant.


def check_url(url: str) -> URL:
    """Return the journal's URL with its driver. Raises InvalidRequest if the URL is invalid."""
    return database.check_url(url, NAME)


def open_engine(url: URL, durability: Durability) -> Engine:
    """Return a pool without open connections. Creates the folder of a SQLite file."""
    return database.open_engine(
        url,
        NAME,
        pool_size=POOL_SIZE,
        survives_power_loss=durability is Durability.POWER,
        session_settings={"pagantic.tenant": EVERY_TENANT},
    )


def check_options(db: Connection) -> None:
    """Raise PreconditionFailed if the server did not receive the options of a PostgreSQL connection."""
    if db.dialect.name != "postgresql":
        return
    if db.execute(text("SELECT current_setting('pagantic.tenant', true)")).scalar() != EVERY_TENANT:
        raise PreconditionFailed(
            "the database lost the settings of its connections, on which timeouts and row-level security depend: use "
            "the session mode of the pooler, or connect without it"
        )


def see_only(db: Connection, tenant: str) -> None:
    """Restrict the rest of a transaction to one tenant's rows, if the database supports it."""
    if db.dialect.name == "postgresql":
        db.execute(text("SELECT set_config('pagantic.tenant', :tenant, true)"), {"tenant": tenant})


def translate_error(error: Exception) -> Exception:
    """Return Unavailable, without the SQL statement, if the database does not answer, or else the same error."""
    return database.translate_error(error, NAME, ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE)


@contextlib.contextmanager
def translating_errors() -> Iterator[None]:
    """Raise translated errors instead of the errors of the database."""
    with database.translating_errors(NAME, ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE):
        yield
