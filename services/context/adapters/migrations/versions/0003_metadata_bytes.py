"""Collections count the bytes of their documents' sources and metadata, which indexes hold in memory."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the count, and read every document's lengths once."""
    op.add_column("context_collections", sa.Column("metadata_bytes", sa.BigInteger, nullable=False, server_default="0"))
    size = "octet_length(source) + octet_length(metadata_json)"
    if op.get_bind().dialect.name == "sqlite":
        size = "length(CAST(source AS BLOB)) + length(CAST(metadata_json AS BLOB))"
    op.execute(
        f"UPDATE context_collections SET metadata_bytes = (SELECT coalesce(sum({size}), 0) "  # noqa: S608 - constants
        "FROM context_documents WHERE collection_id = context_collections.id)"
    )
