"""Approvals of tool calls."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Make the table, whose rows PostgreSQL shows to their tenant alone."""
    op.create_table(
        "approvals",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("tool_call_id", sa.Text, primary_key=True),
        sa.Column("requested_at", sa.Double, nullable=False),
        sa.Column("is_open", sa.Integer, nullable=False),
        sa.Column("approval", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "approvals_open",
        "approvals",
        ["tenant", "requested_at"],
        sqlite_where=sa.text("is_open = 1"),
        postgresql_where=sa.text("is_open = 1"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE approvals ENABLE ROW LEVEL SECURITY")
        op.execute("ALTER TABLE approvals FORCE ROW LEVEL SECURITY")
        op.execute(
            "CREATE POLICY of_tenant ON approvals USING (current_setting('pagantic.tenant', true) IN ('*', tenant))"
        )
