"""Executions that are parked until a time, or until they are signalled."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns, and an index of the parked executions alone."""
    op.add_column("executions", sa.Column("wakes_at", sa.Double))
    op.add_column("executions", sa.Column("parked_s", sa.Double, nullable=False, server_default="0"))
    is_parked = sa.text("interrupted = 2")
    op.create_index("executions_parked", "executions", ["wakes_at"], sqlite_where=is_parked, postgresql_where=is_parked)
