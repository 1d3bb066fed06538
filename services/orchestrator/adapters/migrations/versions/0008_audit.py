"""The audit."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Make the table."""
    texts = ("tenant", "subject", "kind", "key_id", "method", "resource", "request_id", "decision", "code")
    op.create_table(
        "audit_records",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in texts),
        sa.Column("previous", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("audit_records_by_tenant", "audit_records", ["tenant", "owner", "position"])
