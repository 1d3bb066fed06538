"""Stores embeddings in the store's database, and finds the chunks that wait to be embedded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.domain.text.ranking import Vectors
from pagantic_common.storage.database import ROW_BYTES
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.collections import batches, find_row, next_revision, read_collection
from services.context.adapters.store.schema import chunks, collections, embeddings, unembedded
from services.context.adapters.store.sizes import add_bytes, count_bytes
from services.context.core.document import Collection, CollectionKey, Prefixes
from services.context.ports import UnembeddedChunks

VALUE_BYTES = 4  # Size of a vector element in bytes.


class SqlEmbeddings:
    """Implements EmbeddingStore. A vector is stored as little-endian 32-bit floats.

    Args:
        access: The database.
        clock: Supplies the times of claims. Replicas compare these times, so their clocks should agree.
        lease_s: How long a replica keeps claimed chunks. A database with a single service has no claims.
    """

    def __init__(self, access: StoreAccess, clock: Clock, lease_s: float) -> None:
        self._access = access
        self._clock = clock
        self._lease_s = lease_s

    async def claim_unembedded(
        self, limit: int, excluded_models: Sequence[str], *, after: int = 0
    ) -> UnembeddedChunks | None:
        """Claim the oldest waiting chunks of a collection, so that other replicas skip them for a time."""
        now_s = self._clock.now().timestamp()
        criteria = _Wanted(limit, excluded_models, after, int(now_s))
        if not self._access.is_shared:
            return await self._access.read(lambda db: _find_unembedded(db, criteria))
        return await self._access.write(lambda db: _claim(db, criteria, int(now_s + self._lease_s)))

    async def release(self, chunks: UnembeddedChunks) -> None:
        """Release claimed chunks, so that any replica may claim them."""
        if self._access.is_shared:
            await self._access.write(lambda db: _set_claim(db, chunks.ids, 0))

    async def set_aside(self, chunks: UnembeddedChunks, seconds: int) -> None:
        """Withhold claimed chunks from all replicas for a time."""
        until_s = int(self._clock.now().timestamp() + seconds)
        await self._access.write(lambda db: _set_claim(db, chunks.ids, until_s))

    async def put_embeddings(self, chunks: UnembeddedChunks, vectors: Vectors) -> None:
        """Store the embeddings of chunks that still exist and still need this model and prefix."""
        await self._access.write(lambda db: _put(db, chunks, vectors))

    async def change_model(self, key: CollectionKey, model: str, prefixes: Prefixes) -> Collection:
        """Drop a collection's embeddings, and queue its chunks for a model.

        Raises NotFound if the collection does not exist.
        """
        return await self._access.write(lambda db: _change_model(db, key, model, prefixes))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The criteria of a claim: maximum chunk count, excluded models, collection to start after, and current time."""

    limit: int
    excluded_models: Sequence[str]
    after: int
    now_s: int


def _claim(db: Connection, wanted: _Wanted, until_s: int) -> UnembeddedChunks | None:
    batch = _find_unembedded(db, wanted)
    if batch is not None:
        _set_claim(db, batch.ids, until_s)
    return batch


def _find_unembedded(db: Connection, wanted: _Wanted) -> UnembeddedChunks | None:
    is_free = unembedded.c.claimed_until <= wanted.now_s
    is_waiting = select(unembedded.c.chunk_id).where(unembedded.c.collection_id == collections.c.id, is_free).exists()
    next_one = (
        select(collections)
        .where(collections.c.embedding_model.not_in(wanted.excluded_models), is_waiting)
        .order_by(collections.c.id <= wanted.after, collections.c.id)
        .limit(1)
    )
    first = db.execute(next_one).one_or_none()
    if first is None:
        return None
    # Chunks that another replica is claiming are skipped. SQLite neither has nor needs these locks.
    waiting = (
        select(chunks.c.id, chunks.c.content)
        .join(unembedded, unembedded.c.chunk_id == chunks.c.id)
        .where(unembedded.c.collection_id == first.id, is_free)
        .order_by(chunks.c.id)
        .limit(wanted.limit)
        .with_for_update(of=unembedded, skip_locked=True)
    )
    rows = db.execute(waiting).all()
    if not rows:
        return None
    return UnembeddedChunks(
        first.tenant,
        first.id,
        first.embedding_model,
        first.document_prefix,
        [row.id for row in rows],
        [row.content for row in rows],
    )


def _set_claim(db: Connection, ids: Sequence[int], claimed_until: int) -> None:
    for some in batches(ids):
        db.execute(update(unembedded).where(unembedded.c.chunk_id.in_(some)).values(claimed_until=claimed_until))


def _put(db: Connection, embedded: UnembeddedChunks, vectors: Vectors) -> None:
    condition = (
        (collections.c.id == embedded.collection_id)
        & (collections.c.embedding_model == embedded.model)
        & (collections.c.document_prefix == embedded.prefix)
    )
    raised = update(collections).where(condition).values(revision=collections.c.revision + 1)
    revision = db.execute(raised.returning(collections.c.revision)).scalar_one_or_none()
    if revision is None:  # The collection was deleted, or its model or prefix changed.
        return
    _check_length(db, embedded, vectors)
    waiting: set[int] = set()
    for some in batches(embedded.ids):
        waiting |= set(db.execute(select(unembedded.c.chunk_id).where(unembedded.c.chunk_id.in_(some))).scalars())
        db.execute(delete(unembedded).where(unembedded.c.chunk_id.in_(some)))
    values = [
        {
            "chunk_id": chunk_id,
            "collection_id": embedded.collection_id,
            "revision": revision,
            "vector": vector.astype("<f4").tobytes(),
        }
        for chunk_id, vector in zip(embedded.ids, vectors, strict=True)
        if chunk_id in waiting
    ]
    if values:
        db.execute(insert(embeddings), values)
        add_bytes(db, embedded.collection_id, len(values) * (ROW_BYTES + VALUE_BYTES * vectors.shape[1]))


def _check_length(db: Connection, embedded: UnembeddedChunks, vectors: Vectors) -> None:
    """Raise PreconditionFailed if the vectors differ in length from the collection's stored vectors."""
    length = func.length(embeddings.c.vector)
    mine = embeddings.c.collection_id == embedded.collection_id
    stored_bytes = db.execute(select(length).where(mine).limit(1)).scalar_one_or_none()
    if stored_bytes is None or stored_bytes == VALUE_BYTES * vectors.shape[1]:
        return
    name = db.execute(select(collections.c.name).where(collections.c.id == embedded.collection_id)).scalar_one()
    raise PreconditionFailed(
        f"model {embedded.model!r} makes vectors of {vectors.shape[1]} values, but those of collection {name!r} have "
        f"{stored_bytes // VALUE_BYTES}: embed the collection again with Reembed"
    )


def _change_model(db: Connection, key: CollectionKey, model: str, prefixes: Prefixes) -> Collection:
    revision = next_revision(db, key)
    collection_id = find_row(db, key).id
    add_bytes(db, collection_id, -count_bytes(db, embeddings, embeddings.c.collection_id == collection_id))
    for table in (embeddings, unembedded):
        db.execute(delete(table).where(table.c.collection_id == collection_id))
    changed = {
        "embedding_model": model,
        "query_prefix": prefixes.query,
        "document_prefix": prefixes.document,
        "whole_revision": revision,
    }
    db.execute(update(collections).where(collections.c.id == collection_id).values(changed))
    if model:
        waiting = select(chunks.c.id, chunks.c.collection_id).where(chunks.c.collection_id == collection_id)
        db.execute(insert(unembedded).from_select(["chunk_id", "collection_id"], waiting))
    return read_collection(db, key)
