"""Who runs what, what an execution is taken up from, whose turn it is, state of sessions, and what it all cost."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add to the executions, and make the new tables."""
    op.add_column("executions", sa.Column("interrupted_at", sa.Double))
    op.execute("UPDATE executions SET interrupted_at = entered_at WHERE interrupted = 1")
    op.add_column("executions", sa.Column("owner", sa.Text, nullable=False, server_default=""))
    op.add_column("executions", sa.Column("cancel_requested", sa.Integer, nullable=False, server_default="0"))
    live = sa.text("response IS NULL")
    op.create_index("executions_live", "executions", ["owner"], sqlite_where=live, postgresql_where=live)
    op.create_table(
        "entries",
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("entry", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "session_state",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value_json", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "summaries",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("message_count", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "turns",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False, index=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "owners",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("beat", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "usage_totals",
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
