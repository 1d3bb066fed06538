"""What journals lack that were made while migration 0002 was still being changed.

The same revision has stood for several shapes, so this one looks at what there is. It adds nothing where nothing lacks.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add what is missing, in whatever state the tables are."""
    inspector = sa.inspect(op.get_bind())
    executions = {column["name"] for column in inspector.get_columns("executions")}
    if "interrupted_at" not in executions:
        op.add_column("executions", sa.Column("interrupted_at", sa.Double))
        op.execute("UPDATE executions SET interrupted_at = entered_at WHERE interrupted = 1")
    summaries = {column["name"] for column in inspector.get_columns("summaries")}
    if "message_count" not in summaries:
        op.alter_column("summaries", "covered", new_column_name="message_count")
    live = sa.text("response IS NULL")
    op.drop_index("executions_by_owner", "executions", if_exists=True)
    op.create_index(
        "executions_live", "executions", ["owner"], sqlite_where=live, postgresql_where=live, if_not_exists=True
    )
    op.create_index("ix_turns_request_id", "turns", ["request_id"], if_not_exists=True)
