"""Where an earlier run of an execution ended, apart from its entries, and how old and last used ones are found."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

READ_AT_ONCE = 20


def upgrade() -> None:
    """Add the column, filled from the entries, and the indexes."""
    op.add_column("executions", sa.Column("after_sequence", sa.Integer, nullable=False, server_default="0"))
    db = op.get_bind()
    found = sa.text("SELECT request_id, entry FROM entries WHERE position = 0")
    # A few at a time: each has a whole request, and a journal may have very many.
    with db.execute(found, execution_options={"yield_per": READ_AT_ONCE}) as first:
        moved = [{"id": row.request_id, "last": last} for row in first if (last := _after_sequence(row.entry))]
    if moved:
        db.execute(sa.text("UPDATE executions SET after_sequence = :last WHERE request_id = :id"), moved)
    ended = sa.text("response IS NOT NULL")
    op.create_index("executions_ended", "executions", ["entered_at"], sqlite_where=ended, postgresql_where=ended)
    op.create_index("sessions_by_use", "sessions", ["updated_at", "session_id"])


def _after_sequence(entry: bytes) -> int:
    """Return the last event of an earlier run; 0 for none, or for an entry that another version wrote."""
    try:
        _, admitted, *_ = json.loads(bytes(entry))
        return int(admitted.get("after_sequence", 0))
    except (ValueError, TypeError, AttributeError):
        return 0
