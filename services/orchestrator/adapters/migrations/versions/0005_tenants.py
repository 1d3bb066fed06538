"""The tenant begins every key. What there is belongs to the tenant "default".

SQLite cannot change a primary key: its tables are copied, which takes time once, and three times the journal's size of
free space. The file stays twice as large; its free half is used again.
"""

import shutil
from pathlib import Path

import sqlalchemy as sa
from alembic import op

from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.telemetry.logging import get_logger

log = get_logger(__name__)

revision = "0005"
down_revision = "0004"

TENANT = "default"
SLOW_BYTES = 64 * 1024 * 1024
# The first journals had foreign keys: what refers to another table stands before it.
KEYS = {
    "events": ["tenant", "request_id", "sequence"],
    "entries": ["tenant", "request_id", "position"],
    "executions": ["ordinal"],
    "messages": ["tenant", "session_id", "position"],
    "sessions": ["tenant", "session_id"],
    "session_state": ["tenant", "session_id", "key"],
    "summaries": ["tenant", "session_id"],
    "turns": ["tenant", "session_id"],
    "usage_totals": ["tenant", "session_id", "model"],
}
WITHOUT_ROWID = {"events", "entries", "messages", "session_state", "turns", "usage_totals"}
OLD_INDEXES = {
    "executions_by_session": "executions",
    "executions_live": "executions",
    "executions_ended": "executions",
    "sessions_by_use": "sessions",
    "ix_turns_request_id": "turns",
}


def upgrade() -> None:
    """Add the column to every table and its key, and make the indexes again."""
    db = op.get_bind()
    if db.dialect.name == "sqlite":
        _check_space(Path(str(db.engine.url.database)))
    for index, table in OLD_INDEXES.items():
        op.drop_index(index, table, if_exists=True)
    for table in KEYS:
        if db.dialect.name == "sqlite":
            _copy(db, table)
        else:
            _alter(db, table)
    _create_indexes()


def _check_space(path: Path) -> None:
    size_bytes = path.stat().st_size
    free_bytes = shutil.disk_usage(path.parent).free
    if size_bytes > SLOW_BYTES:
        log.info("copying the journal once, for its new keys", size_bytes=size_bytes)
    if free_bytes < 3 * size_bytes:
        raise PreconditionFailed(
            f"the journal must be copied once, which needs {3 * size_bytes} bytes of free space, and {free_bytes} are "
            "free: make room, or name another journal with PAGANTIC_ORCHESTRATOR_JOURNAL_URL"
        )


def _copy(db: sa.Connection, name: str) -> None:
    """Make the table anew, and move its rows."""
    old = sa.Table(name, sa.MetaData(), autoload_with=db, resolve_fks=False)
    columns = [
        sa.Column(one.name, one.type, nullable=one.nullable, server_default=one.server_default) for one in old.columns
    ]
    unique = [sa.UniqueConstraint("tenant", "request_id")] if name == "executions" else []
    op.rename_table(name, "before_tenants")
    op.create_table(
        name,
        sa.Column("tenant", sa.Text, nullable=False),
        *columns,
        sa.PrimaryKeyConstraint(*KEYS[name]),
        *unique,
        sqlite_with_rowid=name not in WITHOUT_ROWID,
    )
    names = ", ".join(one.name for one in old.columns)
    moved = f"INSERT INTO {name} (tenant, {names}) SELECT :tenant, {names} FROM before_tenants"  # noqa: S608 - our names
    db.execute(sa.text(moved), {"tenant": TENANT})
    op.drop_table("before_tenants")


def _alter(db: sa.Connection, name: str) -> None:
    for foreign in sa.inspect(db).get_foreign_keys(name):
        op.drop_constraint(str(foreign["name"]), name)
    op.add_column(name, sa.Column("tenant", sa.Text, nullable=False, server_default=TENANT))
    op.alter_column(name, "tenant", server_default=None)
    if name == "executions":
        op.drop_constraint("executions_request_id_key", name)
        op.create_unique_constraint("executions_tenant_request_id_key", name, ["tenant", "request_id"])
    else:
        op.drop_constraint(f"{name}_pkey", name)
        op.create_primary_key(f"{name}_pkey", name, KEYS[name])


def _create_indexes() -> None:
    live, ended = sa.text("response IS NULL"), sa.text("response IS NOT NULL")
    op.create_index("executions_by_tenant", "executions", ["tenant", "ordinal"])
    op.create_index("executions_by_session", "executions", ["tenant", "session_id", "ordinal"])
    op.create_index("executions_live", "executions", ["owner"], sqlite_where=live, postgresql_where=live)
    op.create_index("executions_ended", "executions", ["entered_at"], sqlite_where=ended, postgresql_where=ended)
    op.create_index("sessions_by_use", "sessions", ["updated_at", "tenant", "session_id"])
    op.create_index("sessions_by_tenant", "sessions", ["tenant", "updated_at", "session_id"])
    op.create_index("turns_by_execution", "turns", ["tenant", "request_id"])
