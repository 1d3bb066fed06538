"""Row-level security in PostgreSQL: a second line behind the tenants in queries."""

from alembic import op

revision = "0009"
down_revision = "0008"

TABLES = (
    *("executions", "events", "entries", "sessions", "messages", "session_state", "summaries", "turns"),
    "usage_totals",
)


def upgrade() -> None:
    """Show each transaction the rows of its tenant alone; the writer's is `*`, which is no tenant."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY of_tenant ON {table} USING (current_setting('pagantic.tenant', true) IN ('*', tenant))"
        )
