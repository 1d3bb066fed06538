"""Collections, documents, chunks, their terms and their embeddings; and what files without migrations had.

Those files had the chunks of documents, not their texts. The chunks, joined by blank lines, become the text, so that
chunks keep their content; the documents lose their hash, so that the next ingest replaces them.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from services.context.core.search.terms import content_digest, count_terms

revision = "0001"
down_revision = None

_ORDINAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_LANGUAGE = "none"


def upgrade() -> None:
    """Make the tables, and fill them from the older ones."""
    op.create_table(
        "context_collections",
        sa.Column("id", _ORDINAL, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("whole_revision", sa.BigInteger, nullable=False),
        sa.Column("embedding_model", sa.Text, nullable=False),
        sa.Column("language", sa.Text, nullable=False),
        sa.UniqueConstraint("tenant", "name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "context_documents",
        sa.Column("id", _ORDINAL, primary_key=True, autoincrement=True),
        sa.Column("collection_id", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("metadata_json", sa.Text, nullable=False),
        sa.Column("outline_json", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.UniqueConstraint("collection_id", "source"),
        sqlite_autoincrement=True,
    )
    op.create_index("context_documents_by_revision", "context_documents", ["collection_id", "revision"])
    op.create_table(
        "context_chunks",
        sa.Column("id", _ORDINAL, primary_key=True, autoincrement=True),
        sa.Column("collection_id", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("document_id", sa.BigInteger, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("start_char", sa.Integer, nullable=False),
        sa.Column("end_char", sa.Integer, nullable=False),
        sa.Column("page", sa.Integer, nullable=False),
        sa.Column("heading", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("content_digest", sa.BigInteger, nullable=False),
        sa.Column("terms", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("context_chunks_by_revision", "context_chunks", ["collection_id", "revision"])
    op.create_index("context_chunks_of_document", "context_chunks", ["document_id", "position"], unique=True)
    op.create_table(
        "context_embeddings",
        sa.Column("chunk_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("collection_id", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("vector", sa.LargeBinary, nullable=False),
    )
    op.create_index("context_embeddings_by_revision", "context_embeddings", ["collection_id", "revision"])
    op.create_table(
        "context_unembedded",
        sa.Column("chunk_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("collection_id", sa.BigInteger, nullable=False),
    )
    op.create_index("context_unembedded_of_collection", "context_unembedded", ["collection_id"])
    op.create_table(
        "context_removals",
        sa.Column("collection_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("document_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    _take_over(op.get_bind())


def _take_over(db: sa.Connection) -> None:
    version = 0
    if db.dialect.name == "sqlite":
        version = db.exec_driver_sql("PRAGMA user_version").scalar_one()
    if version not in (1, 2):
        return
    tenant = {1: f"'{DEFAULT_TENANT}'", 2: "tenant"}[version]
    db.exec_driver_sql(
        "INSERT INTO context_collections (id, tenant, name, created_at, revision, whole_revision, embedding_model, "  # noqa: S608 - made of constants
        f"language) SELECT id, {tenant}, name, created_at, revision + 1, revision + 1, '', '{_LANGUAGE}' "
        "FROM collections"
    )
    for row in db.exec_driver_sql(
        "SELECT d.id, d.collection_id, c.revision + 1, d.source, d.metadata_json "
        "FROM documents d JOIN collections c ON c.id = d.collection_id"
    ).all():
        _take_over_document(db, row)
    for table in ("chunks", "documents", "collections"):
        op.drop_table(table)
    db.exec_driver_sql("PRAGMA user_version = 0")


def _take_over_document(db: sa.Connection, row: sa.Row[Any]) -> None:
    document_id, collection_id, number, source, metadata_json = tuple(row)
    sql = "SELECT content FROM chunks WHERE document_id = ? ORDER BY position"
    contents = [content for (content,) in db.exec_driver_sql(sql, (document_id,))]
    db.exec_driver_sql(
        "INSERT INTO context_documents (id, collection_id, revision, source, digest, metadata_json, outline_json, text)"
        " VALUES (?, ?, ?, ?, '', ?, '{}', ?)",
        (document_id, collection_id, number, source, metadata_json, "\n\n".join(contents)),
    )
    start = 0
    for position, content in enumerate(contents):
        end = start + len(content)
        terms = count_terms(content, _LANGUAGE).to_bytes()
        db.exec_driver_sql(
            "INSERT INTO context_chunks (collection_id, revision, document_id, position, start_char, end_char, page, "
            "heading, content, content_digest, terms) VALUES (?, ?, ?, ?, ?, ?, 0, '', ?, ?, ?)",
            (collection_id, number, document_id, position, start, end, content, content_digest(content), terms),
        )
        start = end + 2
