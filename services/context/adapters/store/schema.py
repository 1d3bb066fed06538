"""The tables of the collections, which are the same in SQLite and PostgreSQL.

The text of a document is authoritative. Chunks and terms are derived from it, and embeddings from chunks. Every change
of a collection increments its revision and stamps the new rows with it, so an index at revision r reads only newer
rows. The migrations create the tables, and a test checks that they match the definitions here.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text, UniqueConstraint

from pagantic_common.storage.migration import Schema

TABLES = MetaData()
# SQLite autoincrements only a column of exactly this type.
ORDINAL = BigInteger().with_variant(Integer, "sqlite")

collections = Table(
    "context_collections",
    TABLES,
    Column("id", ORDINAL, primary_key=True, autoincrement=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    # An index of an earlier revision must read the whole collection.
    Column("whole_revision", BigInteger, nullable=False),
    Column("embedding_model", Text, nullable=False),
    Column("language", Text, nullable=False),
    Column("query_prefix", Text, nullable=False, server_default=""),
    Column("document_prefix", Text, nullable=False, server_default=""),
    # The size of the documents' sources and metadata in UTF-8.
    Column("metadata_bytes", BigInteger, nullable=False, server_default="0"),
    # The size of the documents, chunks and embeddings, as sizes.py counts it.
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("tenant", "name"),
    sqlite_autoincrement=True,
)
documents = Table(
    "context_documents",
    TABLES,
    Column("id", ORDINAL, primary_key=True, autoincrement=True),
    Column("collection_id", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("metadata_json", Text, nullable=False),
    Column("outline_json", Text, nullable=False),
    Column("text", Text, nullable=False),
    UniqueConstraint("collection_id", "source"),
    Index("context_documents_by_revision", "collection_id", "revision"),
    sqlite_autoincrement=True,
)
chunks = Table(
    "context_chunks",
    TABLES,
    Column("id", ORDINAL, primary_key=True, autoincrement=True),
    Column("collection_id", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("document_id", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("start_char", Integer, nullable=False),
    Column("end_char", Integer, nullable=False),
    Column("page", Integer, nullable=False),
    Column("heading", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("content_digest", BigInteger, nullable=False),
    Column("terms", LargeBinary, nullable=False),
    Index("context_chunks_by_revision", "collection_id", "revision"),
    Index("context_chunks_of_document", "document_id", "position", unique=True),
    sqlite_autoincrement=True,
)
embeddings = Table(
    "context_embeddings",
    TABLES,
    Column("chunk_id", BigInteger, primary_key=True, autoincrement=False),
    Column("collection_id", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    Index("context_embeddings_by_revision", "collection_id", "revision"),
)
unembedded = Table(
    "context_unembedded",
    TABLES,
    Column("chunk_id", BigInteger, primary_key=True, autoincrement=False),
    Column("collection_id", BigInteger, nullable=False),
    # Until this time, in seconds since 1970, only the claiming replica may embed the chunk.
    Column("claimed_until", BigInteger, nullable=False, server_default="0"),
    Index("context_unembedded_of_collection", "collection_id"),
)
removals = Table(
    "context_removals",
    TABLES,
    Column("collection_id", BigInteger, primary_key=True, autoincrement=False),
    Column("document_id", BigInteger, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
)

SCHEMA = Schema(
    TABLES,
    scripts=f"{__name__.removesuffix('.store.schema')}:migrations",
    version_table="context_version",
    lock=7_201_947,
    name="the store",
    advice="name another database with PAGANTIC_CONTEXT_STORE_URL, or move this one away",
)
