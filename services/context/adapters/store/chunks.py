"""Reads chunks and index data from the store's database."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, Select, func, select

from pagantic_common.domain.chunks import Chunk, ChunkLocation
from pagantic_common.domain.text.ranking import Vectors
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.collections import batches, find_row, read_options
from services.context.adapters.store.schema import chunks, collections, documents, embeddings, removals, unembedded
from services.context.core.document import CollectionKey, Document
from services.context.core.outline import Outline
from services.context.core.search.collection_index import (
    IndexChanges,
    IndexedChunk,
    IndexedDocument,
    Version,
    estimate_bytes,
)
from services.context.core.search.terms import TERM_BYTES, TermCounts
from services.context.ports import DerivedChunk, StoredChunk, StoredDocument

_OPTIONS = (
    collections.c.embedding_model,
    collections.c.language,
    collections.c.query_prefix,
    collections.c.document_prefix,
)
_CHUNKS: Select[Any] = select(chunks, documents.c.source, documents.c.metadata_json).join(
    documents, documents.c.id == chunks.c.document_id
)


class SqlChunks:
    """Implements ChunkStore with the store's database."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    async def read_whole(self, key: CollectionKey) -> IndexChanges:
        """Return the whole collection. Raises NotFound if the collection does not exist."""
        return await self._access.read(lambda db: _read_changes(db, find_row(db, key), None))

    async def index_bytes(self, key: CollectionKey) -> int:
        """Estimate the memory of the collection's index, in bytes. Raises NotFound if the collection does not exist."""
        return await self._access.read(lambda db: _index_bytes(db, find_row(db, key)))

    async def changes_since(self, key: CollectionKey, version: Version) -> IndexChanges | None:
        """Return the changes after a version, or None if they are unknown."""
        return await self._access.read(lambda db: _changes_since(db, key, version))

    async def read_chunks(self, ids: Sequence[int]) -> list[StoredChunk]:
        """Return the chunks with these ids, except chunks that no longer exist."""
        return await self._access.read(lambda db: _read_chunks(db, ids))

    async def read_texts(self, spans: Sequence[tuple[int, int, int]]) -> list[str]:
        """Return parts of documents by document id, start and end. A deleted document has an empty text."""
        return await self._access.read(lambda db: [_read_text(db, *span) for span in spans])

    async def read_neighbours(self, document_id: int, first: int, last: int) -> list[StoredChunk]:
        """Return the chunks of a document from position `first` to position `last`."""
        mine = (chunks.c.document_id == document_id) & chunks.c.position.between(first, last)
        query = _CHUNKS.where(mine).order_by(chunks.c.position)
        return await self._access.read(lambda db: [_to_chunk(row) for row in db.execute(query)])

    async def read_documents(self, key: CollectionKey) -> AsyncIterator[StoredDocument]:
        """Yield every document with all data derived from it. Raises NotFound if the collection does not exist."""
        for document_id in await self._access.read(lambda db: _document_ids(db, key)):
            if (document := await self._access.read(partial(_read_document, document_id=document_id))) is not None:
                yield document

    async def count_orphans(self, key: CollectionKey) -> int:
        """Return the number of chunks without a document. Raises NotFound if the collection does not exist."""
        return await self._access.read(lambda db: _count_orphans(db, key))


def _index_bytes(db: Connection, collection: Row[Any]) -> int:
    document_count = db.execute(select(func.count()).where(documents.c.collection_id == collection.id)).scalar_one()
    terms = select(func.count(), func.coalesce(func.sum(func.length(chunks.c.terms)), 0))
    chunk_count, term_bytes = db.execute(terms.where(chunks.c.collection_id == collection.id)).one()
    longest = select(func.coalesce(func.max(func.length(embeddings.c.vector)), 0))
    vector_bytes = db.execute(longest.where(embeddings.c.collection_id == collection.id)).scalar_one()
    posting_count = int(term_bytes) // TERM_BYTES
    return estimate_bytes(
        document_count, collection.metadata_bytes, chunk_count, posting_count, chunk_count * vector_bytes
    )


def _changes_since(db: Connection, key: CollectionKey, version: Version) -> IndexChanges | None:
    collection = find_row(db, key)
    if version == (collection.id, collection.revision):
        return IndexChanges(version, read_options(collection))
    if version[0] != collection.id or version[1] < collection.whole_revision:
        return None
    return _read_changes(db, collection, version[1])


def _read_changes(db: Connection, collection: Row[Any], seen_revision: int | None) -> IndexChanges:
    now = (int(collection.id), int(collection.revision))
    since = seen_revision or 0
    removed: Sequence[int] = ()
    if seen_revision is not None:
        gone = (removals.c.collection_id == now[0]) & (removals.c.revision > since)
        removed = list(db.execute(select(removals.c.document_id).where(gone)).scalars())
    new_documents = _newer(select(documents.c.id, documents.c.source, documents.c.metadata_json), documents, now, since)
    new_chunks = _newer(
        select(chunks.c.id, chunks.c.document_id, chunks.c.content_digest, chunks.c.terms), chunks, now, since
    )
    new_vectors = _newer(select(embeddings.c.chunk_id, embeddings.c.vector), embeddings, now, since)
    vectors = _of_one_length(db.execute(new_vectors.order_by(embeddings.c.chunk_id)).all())
    return IndexChanges(
        now,
        read_options(collection),
        documents=[
            IndexedDocument(row.id, row.source.encode(), row.metadata_json.encode())
            for row in db.execute(new_documents)
        ],
        chunks=[
            IndexedChunk(row.id, row.document_id, row.content_digest, TermCounts.from_bytes(row.terms))
            for row in db.execute(new_chunks.order_by(chunks.c.id))
        ],
        removed_document_ids=removed,
        embedded_ids=[row.chunk_id for row in vectors],
        vectors=to_matrix([row.vector for row in vectors]),
    )


def _newer(query: Select[Any], table: Any, version: Version, since: int) -> Select[Any]:
    return query.where(table.c.collection_id == version[0], table.c.revision > since)


def _of_one_length(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """Return the rows whose vectors have the most frequent length.

    An index needs vectors of one length, but earlier versions stored vectors of any length.
    """
    counts = Counter(len(row.vector) for row in rows)
    if len(counts) <= 1:
        return rows
    ((length, _),) = counts.most_common(1)
    return [row for row in rows if len(row.vector) == length]


def to_matrix(rows: Sequence[bytes]) -> Vectors:
    """Return stored vectors as a matrix with one row per vector."""
    if not rows:
        return np.zeros((0, 0), dtype=np.float32)
    return np.frombuffer(b"".join(rows), dtype="<f4").reshape(len(rows), -1)


def _read_chunks(db: Connection, ids: Sequence[int]) -> list[StoredChunk]:
    rows = [row for some in batches(list(ids)) for row in db.execute(_CHUNKS.where(chunks.c.id.in_(some)))]
    return [_to_chunk(row) for row in rows]


def _to_chunk(row: Row[Any]) -> StoredChunk:
    chunk = Chunk(
        id=str(row.position),
        content=row.content,
        source=row.source,
        metadata_json=row.metadata_json,
        location=ChunkLocation(row.start_char, row.end_char, row.page, row.heading),
    )
    return StoredChunk(row.id, row.document_id, row.position, chunk)


def _read_text(db: Connection, document_id: int, start: int, end: int) -> str:
    part = func.substr(documents.c.text, start + 1, end - start)
    return db.execute(select(part).where(documents.c.id == document_id)).scalar_one_or_none() or ""


def _document_ids(db: Connection, key: CollectionKey) -> list[int]:
    mine = documents.c.collection_id == find_row(db, key).id
    return list(db.execute(select(documents.c.id).where(mine).order_by(documents.c.id)).scalars())


def _count_orphans(db: Connection, key: CollectionKey) -> int:
    joined = select(func.count()).select_from(chunks).outerjoin(documents, documents.c.id == chunks.c.document_id)
    lost = (chunks.c.collection_id == find_row(db, key).id) & documents.c.id.is_(None)
    return db.execute(joined.where(lost)).scalar_one()


def _read_document(db: Connection, document_id: int) -> StoredDocument | None:
    query = select(documents, *_OPTIONS).join(collections, collections.c.id == documents.c.collection_id)
    row = db.execute(query.where(documents.c.id == document_id)).one_or_none()
    if row is None:
        return None
    joined = (
        _CHUNKS.add_columns(embeddings.c.vector, unembedded.c.chunk_id.label("waiting_id"))
        .outerjoin(embeddings, embeddings.c.chunk_id == chunks.c.id)
        .outerjoin(unembedded, unembedded.c.chunk_id == chunks.c.id)
    )
    derived = db.execute(joined.where(chunks.c.document_id == document_id).order_by(chunks.c.position))
    return StoredDocument(
        Document(row.source, row.text, row.metadata_json, Outline.from_json(row.outline_json)),
        row.digest,
        (row.collection_id, row.revision),
        read_options(row),
        [_to_derived(chunk_row) for chunk_row in derived],
    )


def _to_derived(row: Row[Any]) -> DerivedChunk:
    vector = None
    if row.vector is not None:
        vector = to_matrix([row.vector])[0]
    return DerivedChunk(_to_chunk(row), row.content_digest, row.terms, vector, row.waiting_id is not None)
