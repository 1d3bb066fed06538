"""The journal's tables, the same in SQLite and PostgreSQL, and their migration.

The migrations create the tables. A test checks that the created tables match the tables described here.
"""

from __future__ import annotations

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
    literal_column,
    text,
)

from pagantic_common.storage import migration
from services.orchestrator.adapters.journal.sealing import SealedBytes, SealedText

TABLES = MetaData()
# SQLite autoincrements a column only if it has exactly this type.
ORDINAL = BigInteger().with_variant(Integer, "sqlite")

executions = Table(
    "executions",
    TABLES,
    Column("ordinal", ORDINAL, primary_key=True, autoincrement=True),
    Column("tenant", Text, nullable=False),
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
    Column("last_error", SealedBytes("executions.last_error")),
    Column("response", SealedBytes("executions.response")),
    # 0 while an orchestrator runs the execution, 1 if it was interrupted, and 2 if it is parked.
    Column("interrupted", Integer, nullable=False, server_default="0"),
    Column("interrupted_at", Double),  # For a parked execution, the time at which it was parked.
    Column("wakes_at", Double),
    Column("parked_s", Double, nullable=False, server_default="0"),
    Column("owner", Text, nullable=False, server_default=""),
    Column("cancel_requested", Integer, nullable=False, server_default="0"),
    Column("after_sequence", Integer, nullable=False, server_default="0"),
    Column("background", Integer, nullable=False, server_default="0"),
    # Size of the execution's content in all tables, in bytes before encryption, without its entries; see rows.py.
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),
    # Size of the execution's entries. Most executions lose their entries when they end.
    Column("entry_bytes", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("tenant", "request_id"),
    Index("executions_by_tenant", "tenant", "ordinal"),
    Index("executions_by_session", "tenant", "session_id", "ordinal"),
    # A tenant's total is computed from this index alone, because the rows contain whole responses.
    Index("executions_by_size", "tenant", "stored_bytes", "entry_bytes"),
    # The index is partial, because few executions are live at a time.
    Index("executions_live", "owner", sqlite_where=text("response IS NULL"), postgresql_where=text("response IS NULL")),
    Index(
        "executions_parked",
        "wakes_at",
        sqlite_where=text("interrupted = 2"),
        postgresql_where=text("interrupted = 2"),
    ),
    Index(
        "executions_ended",
        "entered_at",
        sqlite_where=text("response IS NOT NULL"),
        postgresql_where=text("response IS NOT NULL"),
    ),
)
kept_requests = Table(
    "kept_requests",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("request", SealedBytes("kept_requests.request"), nullable=False),
    Column("metadata_json", SealedBytes("kept_requests.metadata_json"), nullable=False),
)
events = Table(
    "events",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("event", SealedBytes("events.event"), nullable=False),
    sqlite_with_rowid=False,
)
entries = Table(
    "entries",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("entry", SealedBytes("entries.entry"), nullable=False),
    sqlite_with_rowid=False,
)
sessions = Table(
    "sessions",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    # Size of the conversation's content in all tables, in bytes before encryption; see rows.py.
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),
    Index("sessions_by_use", "updated_at", "tenant", "session_id"),
    Index("sessions_by_tenant", "tenant", "updated_at", "session_id"),
)
messages = Table(
    "messages",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("message", SealedBytes("messages.message"), nullable=False),
    sqlite_with_rowid=False,
)
session_state = Table(
    "session_state",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value_json", SealedText("session_state.value_json"), nullable=False),
    sqlite_with_rowid=False,
)
summaries = Table(
    "summaries",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("message_count", Integer, nullable=False),
    Column("text", SealedText("summaries.text"), nullable=False),
)
turns = Table(
    "turns",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("request_id", Text, nullable=False),
    Index("turns_by_execution", "tenant", "request_id"),
    sqlite_with_rowid=False,
)
# The names refer to the first kind of wait, so that earlier versions can share the database.
# They read rows whose is_open is 1 as open approvals.
OPEN_APPROVAL, OPEN = 1, 2
waits = Table(
    "approvals",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("tool_call_id", Text, primary_key=True, key="wait_id"),
    Column("requested_at", Double, nullable=False, key="began_at"),
    Column("is_open", Integer, nullable=False),
    Column("approval", SealedBytes("approvals.approval"), nullable=False, key="wait"),
    Column("kind", Text, nullable=False, server_default="APPROVAL"),
    Column("name", Text, nullable=False, server_default=""),  # the signal that ends the wait
    Index("waits_open", "tenant", "began_at", sqlite_where=text("is_open > 0"), postgresql_where=text("is_open > 0")),
    sqlite_with_rowid=False,
)
# SQLite uses the partial index only for a condition without a parameter.
IS_OPEN = waits.c.is_open > literal_column("0")
signals = Table(
    "signals",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("signal_id", Text, primary_key=True),
    Column("ordinal", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("is_kept", Integer, nullable=False),
    Column("signal", SealedBytes("signals.signal"), nullable=False),
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
    Column("tenant", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_prompt_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_usd", Double, nullable=False),
    sqlite_with_rowid=False,
)
api_keys = Table(
    "api_keys",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("subject", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    UniqueConstraint("key_id"),
)
budgets = Table(
    "budgets",
    TABLES,
    Column("tenant", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("period", Text, nullable=False),
    Column("max_tokens", BigInteger),
    Column("max_micro_usd", BigInteger),
    Column("period_start", Double, nullable=False),
    Column("granted_tokens", BigInteger, nullable=False),
    Column("granted_micro_usd", BigInteger, nullable=False),
    Column("made_at", Double, nullable=False),
)
audit_records = Table(
    "audit_records",
    TABLES,
    Column("owner", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("resource", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("previous", LargeBinary, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Index("audit_records_by_tenant", "tenant", "owner", "position"),
    sqlite_with_rowid=False,
)


SCHEMA = migration.Schema(
    TABLES,
    scripts=f"{__name__.removesuffix('.journal.schema')}:migrations",
    version_table="alembic_version",
    lock=7_201_946,
    name="the journal",
    advice="name another journal with PAGANTIC_ORCHESTRATOR_JOURNAL_URL, or move this one away",
)


def migrate(connection: Connection) -> None:
    """Migrate a database to this version's tables in the connection's transaction. Not thread-safe.

    Raises PreconditionFailed if the database has a later version, or has foreign tables with the same names.
    """
    migration.migrate(connection, SCHEMA)
