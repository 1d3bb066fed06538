"""Executions in the background, and requests that are kept."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column and the table, whose rows PostgreSQL shows to their tenant alone."""
    op.add_column("executions", sa.Column("background", sa.Integer, nullable=False, server_default="0"))
    op.create_table(
        "kept_requests",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("metadata_json", sa.LargeBinary, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE kept_requests ENABLE ROW LEVEL SECURITY")
        op.execute("ALTER TABLE kept_requests FORCE ROW LEVEL SECURITY")
        op.execute(
            "CREATE POLICY of_tenant ON kept_requests USING (current_setting('pagantic.tenant', true) IN ('*', tenant))"
        )
