"""Budgets of tenants."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "budgets",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("max_tokens", sa.BigInteger),
        sa.Column("max_micro_usd", sa.BigInteger),
        sa.Column("period_start", sa.Double, nullable=False),
        sa.Column("granted_tokens", sa.BigInteger, nullable=False),
        sa.Column("granted_micro_usd", sa.BigInteger, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
    )
