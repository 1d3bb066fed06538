"""Collections count the bytes of their documents, chunks and embeddings."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

ROW_BYTES = 128
CONTENT = {
    "context_documents": ["source", "metadata_json", "outline_json", "text"],
    "context_chunks": ["heading", "content", "terms"],
    "context_embeddings": ["vector"],
}


def upgrade() -> None:
    """Add the count, and read the length of everything once."""
    op.add_column("context_collections", sa.Column("stored_bytes", sa.BigInteger, nullable=False, server_default="0"))
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    sums = []
    for table, columns in CONTENT.items():
        octets = [f"length(CAST({column} AS BLOB))" if is_sqlite else f"octet_length({column})" for column in columns]
        size = " + ".join([str(ROW_BYTES), *octets])
        mine = "collection_id = context_collections.id"
        sums.append(f"(SELECT coalesce(sum({size}), 0) FROM {table} WHERE {mine})")  # noqa: S608 - constants
    op.execute(f"UPDATE context_collections SET stored_bytes = {' + '.join(sums)}")  # noqa: S608 - constants
