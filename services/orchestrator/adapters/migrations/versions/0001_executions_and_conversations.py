"""Executions, their events, and conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ORDINAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables; files from before there were migrations have them."""
    op.create_table(
        "executions",
        sa.Column("ordinal", _ORDINAL, primary_key=True, autoincrement=True),
        sa.Column("request_id", sa.Text, nullable=False, unique=True),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("trace_id", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("entered_at", sa.Double, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("total_steps", sa.Integer, nullable=False),
        sa.Column("last_step", sa.Text, nullable=False),
        sa.Column("last_error", sa.LargeBinary),
        sa.Column("response", sa.LargeBinary),
        sa.Column("interrupted", sa.Integer, nullable=False, server_default="0"),
        if_not_exists=True,
    )
    op.create_index("executions_by_session", "executions", ["session_id", "ordinal"], if_not_exists=True)
    op.create_table(
        "events",
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("event", sa.LargeBinary, nullable=False),
        if_not_exists=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "messages",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("message", sa.LargeBinary, nullable=False),
        if_not_exists=True,
        sqlite_with_rowid=False,
    )
