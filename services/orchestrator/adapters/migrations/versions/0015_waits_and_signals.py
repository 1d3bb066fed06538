"""Waits of every kind in the table of approvals, and signals."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the columns, an index of all open waits, and the table, whose rows PostgreSQL shows to their tenant alone."""
    op.add_column("approvals", sa.Column("kind", sa.Text, nullable=False, server_default="APPROVAL"))
    op.add_column("approvals", sa.Column("name", sa.Text, nullable=False, server_default=""))
    op.drop_index("approvals_open", "approvals")
    is_open = sa.text("is_open > 0")
    columns = ["tenant", "requested_at"]
    op.create_index("waits_open", "approvals", columns, sqlite_where=is_open, postgresql_where=is_open)
    op.create_table(
        "signals",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("signal_id", sa.Text, primary_key=True),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("is_kept", sa.Integer, nullable=False),
        sa.Column("signal", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE signals ENABLE ROW LEVEL SECURITY")
        op.execute("ALTER TABLE signals FORCE ROW LEVEL SECURITY")
        op.execute(
            "CREATE POLICY of_tenant ON signals USING (current_setting('pagantic.tenant', true) IN ('*', tenant))"
        )
