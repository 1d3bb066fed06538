"""Collections remember what their model wants before texts, and waiting chunks which replica embeds them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; until now models got texts without a prefix, and no chunk is claimed."""
    for name in ("query_prefix", "document_prefix"):
        op.add_column("context_collections", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.add_column("context_unembedded", sa.Column("claimed_until", sa.BigInteger, nullable=False, server_default="0"))
