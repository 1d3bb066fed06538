"""The stored bytes of collections: the content of documents, chunks and embeddings, and ROW_BYTES for each row.

The row of a collection holds the sum in `stored_bytes`. Every change of these tables updates the sum in the same
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, LargeBinary, Row, Table, cast, func, select, update

from pagantic_common.storage.database import ROW_BYTES
from services.context.adapters.store.schema import chunks, collections, documents, embeddings

CONTENT: Mapping[Table, tuple[ColumnElement[Any], ...]] = MappingProxyType(
    {
        documents: (documents.c.source, documents.c.metadata_json, documents.c.outline_json, documents.c.text),
        chunks: (chunks.c.heading, chunks.c.content, chunks.c.terms),
        embeddings: (embeddings.c.vector,),
    }
)


def count_bytes(db: Connection, table: Table, which: ColumnElement[bool]) -> int:
    """Return the stored bytes of the selected rows of a table."""
    size = ROW_BYTES + sum(_octets(db, column) for column in CONTENT[table])
    return int(db.execute(select(func.coalesce(func.sum(size), 0)).where(which)).scalar_one())


def add_bytes(db: Connection, collection_id: int, stored_bytes: int, metadata_bytes: int = 0) -> Row[Any]:
    """Add to the sizes of a collection, and return its new metadata_bytes and stored_bytes."""
    held, stored = collections.c.metadata_bytes, collections.c.stored_bytes
    added = update(collections).where(collections.c.id == collection_id)
    added = added.values(metadata_bytes=held + metadata_bytes, stored_bytes=stored + stored_bytes)
    return db.execute(added.returning(held, stored)).one()


def tenant_bytes(db: Connection, tenant: str) -> int:
    """Return the bytes of all collections of a tenant."""
    total = func.coalesce(func.sum(collections.c.stored_bytes), 0)
    return int(db.execute(select(total).where(collections.c.tenant == tenant)).scalar_one())


def _octets(db: Connection, column: ColumnElement[Any]) -> ColumnElement[int]:
    if db.dialect.name == "sqlite":
        return func.length(cast(column, LargeBinary))
    return func.octet_length(column)
