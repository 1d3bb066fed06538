"""The journal's tables, the same in SQLite and PostgreSQL, and how a database comes to have them.

The migrations make the tables; what is written here is what they lead to, which a test holds.
"""

from __future__ import annotations

import logging

from alembic import command
from alembic.config import Config
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

TABLES = MetaData()
# SQLite counts rows up only in a column of exactly this type.
ORDINAL = BigInteger().with_variant(Integer, "sqlite")

executions = Table(
    "executions",
    TABLES,
    Column("ordinal", ORDINAL, primary_key=True, autoincrement=True),
    Column("request_id", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("entered_at", Double, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("total_steps", Integer, nullable=False),
    Column("last_step", Text, nullable=False),
    Column("last_error", LargeBinary),
    Column("response", LargeBinary),
    Column("interrupted", Integer, nullable=False, server_default="0"),
    Column("interrupted_at", Double),
    Column("owner", Text, nullable=False, server_default=""),
    Column("cancel_requested", Integer, nullable=False, server_default="0"),
    UniqueConstraint("request_id"),
    Index("executions_by_session", "session_id", "ordinal"),
    # Of what has not ended only, which is little.
    Index("executions_live", "owner", sqlite_where=text("response IS NULL"), postgresql_where=text("response IS NULL")),
)
events = Table(
    "events",
    TABLES,
    Column("request_id", Text, primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("event", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
entries = Table(
    "entries",
    TABLES,
    Column("request_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("entry", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
sessions = Table(
    "sessions",
    TABLES,
    Column("session_id", Text, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)
messages = Table(
    "messages",
    TABLES,
    Column("session_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("message", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
session_state = Table(
    "session_state",
    TABLES,
    Column("session_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value_json", Text, nullable=False),
    sqlite_with_rowid=False,
)
summaries = Table(
    "summaries",
    TABLES,
    Column("session_id", Text, primary_key=True),
    Column("message_count", Integer, nullable=False),
    Column("text", Text, nullable=False),
)
turns = Table(
    "turns",
    TABLES,
    Column("session_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False, index=True),
    sqlite_with_rowid=False,
)
owners = Table(
    "owners",
    TABLES,
    Column("owner", Text, primary_key=True),
    Column("beat", BigInteger, nullable=False),
)
usage_totals = Table(
    "usage_totals",
    TABLES,
    Column("session_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_prompt_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_usd", Double, nullable=False),
    sqlite_with_rowid=False,
)


def migrate(connection: Connection) -> None:
    """Bring a database to this version's tables, in the connection's transaction. One thread of a process at a time."""
    config = Config()
    config.set_main_option("script_location", "services.orchestrator.adapters:migrations")
    config.attributes["connection"] = connection
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells at each start what it assumes
    command.upgrade(config, "head")
