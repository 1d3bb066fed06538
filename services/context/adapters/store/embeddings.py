"""Embeddings in the store's database, and the chunks that wait for theirs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update

from pagantic_common.domain.text.ranking import Vectors
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.collections import batches, find_row, next_revision, read_collection
from services.context.adapters.store.schema import chunks, collections, embeddings, unembedded
from services.context.core.document import Collection, CollectionKey
from services.context.ports import UnembeddedChunk


class SqlEmbeddings:
    """Implements EmbeddingStore. A vector is stored as little-endian 32-bit floats."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    async def find_unembedded(self, limit: int, excluded_models: Sequence[str]) -> tuple[str, list[UnembeddedChunk]]:
        """Return the oldest chunks of one embedding model that wait, with the model's alias; empty when none waits."""
        return await self._access.read(lambda db: _find_unembedded(db, limit, excluded_models))

    async def put_embeddings(self, model: str, chunks: Sequence[UnembeddedChunk], vectors: Vectors) -> None:
        """Store embeddings of chunks that are still there and still want this model."""
        await self._access.write(lambda db: _put(db, model, chunks, vectors))

    async def change_model(self, key: CollectionKey, model: str) -> Collection:
        """Drop a collection's embeddings, and queue its chunks for another model; raises NotFound."""
        return await self._access.write(lambda db: _change_model(db, key, model))


def _find_unembedded(db: Connection, limit: int, excluded_models: Sequence[str]) -> tuple[str, list[UnembeddedChunk]]:
    oldest = (
        select(unembedded.c.collection_id, collections.c.embedding_model)
        .join(collections, collections.c.id == unembedded.c.collection_id)
        .where(collections.c.embedding_model.not_in(excluded_models))
        .order_by(unembedded.c.chunk_id)
        .limit(1)
    )
    first = db.execute(oldest).one_or_none()
    if first is None:
        return "", []
    waiting = (
        select(chunks.c.id, chunks.c.collection_id, chunks.c.content)
        .join(unembedded, unembedded.c.chunk_id == chunks.c.id)
        .where(unembedded.c.collection_id == first.collection_id)
        .order_by(chunks.c.id)
        .limit(limit)
    )
    return first.embedding_model, [UnembeddedChunk(*row) for row in db.execute(waiting)]


def _put(db: Connection, model: str, embedded: Sequence[UnembeddedChunk], vectors: Vectors) -> None:
    for collection_id in {one.collection_id for one in embedded}:
        mine = (collections.c.id == collection_id) & (collections.c.embedding_model == model)
        raised = update(collections).where(mine).values(revision=collections.c.revision + 1)
        revision = db.execute(raised.returning(collections.c.revision)).scalar_one_or_none()
        if revision is None:  # deleted, or embedded by another model now
            continue
        rows = {one.id: vectors[row] for row, one in enumerate(embedded) if one.collection_id == collection_id}
        waiting: set[int] = set()
        for some in batches(list(rows)):
            waiting |= set(db.execute(select(unembedded.c.chunk_id).where(unembedded.c.chunk_id.in_(some))).scalars())
            db.execute(delete(unembedded).where(unembedded.c.chunk_id.in_(some)))
        values = [
            {
                "chunk_id": chunk_id,
                "collection_id": collection_id,
                "revision": revision,
                "vector": rows[chunk_id].astype("<f4").tobytes(),
            }
            for chunk_id in sorted(waiting)
        ]
        if values:
            db.execute(insert(embeddings), values)


def _change_model(db: Connection, key: CollectionKey, model: str) -> Collection:
    revision = next_revision(db, key)
    collection_id = find_row(db, key).id
    for table in (embeddings, unembedded):
        db.execute(delete(table).where(table.c.collection_id == collection_id))
    changed = {"embedding_model": model, "whole_revision": revision}
    db.execute(update(collections).where(collections.c.id == collection_id).values(changed))
    if model:
        waiting = select(chunks.c.id, chunks.c.collection_id).where(chunks.c.collection_id == collection_id)
        db.execute(insert(unembedded).from_select(["chunk_id", "collection_id"], waiting))
    return read_collection(db, key)
