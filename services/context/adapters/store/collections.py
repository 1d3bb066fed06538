"""Collections and their documents in the database of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Conflict, ErrorCode, NotFound, Overloaded, PreconditionFailed
from pagantic_common.storage.database import room_bytes
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.schema import chunks, collections, documents, embeddings, removals, unembedded
from services.context.adapters.store.sizes import add_bytes, count_bytes, tenant_bytes
from services.context.core.document import (
    MAX_COLLECTION_METADATA_BYTES,
    Collection,
    CollectionKey,
    CollectionOptions,
    Prefixes,
)
from services.context.core.search.terms import content_digest
from services.context.ports import IngestResult, SplitDocument

MAX_PARAMETERS = 500  # Maximum number of parameters in a statement.
RETRY_AFTER_S = 60.0
MAX_REMOVALS = 10_000  # Removal records are kept for indexes that have not applied them.


class SqlCollections:
    """Implements CollectionStore.

    Args:
        access: The database.
        clock: Supplies the creation times of collections.
        max_chunks: The maximum number of chunks in a collection. An ingest beyond it raises PreconditionFailed.
        max_collections: The maximum number of collections per tenant. Creating another raises PreconditionFailed.
        max_metadata_bytes: The maximum size of the sources and metadata in a collection, in UTF-8.
        max_tenant_bytes: The maximum size of a tenant's collections; 0 means the free space, and None no maximum. A
            larger ingest raises Overloaded with QUOTA_STORAGE.
    """

    def __init__(
        self,
        access: StoreAccess,
        clock: Clock,
        max_chunks: int,
        *,
        max_collections: int = 1000,
        max_metadata_bytes: int = MAX_COLLECTION_METADATA_BYTES,
        max_tenant_bytes: int | None = None,
    ) -> None:
        self._access = access
        self._clock = clock
        self._max_chunks = max_chunks
        self._max_collections = max_collections
        self._max_metadata_bytes = max_metadata_bytes
        self._max_tenant_bytes = max_tenant_bytes

    async def create_collection(self, key: CollectionKey, options: CollectionOptions) -> Collection:
        """Create an empty collection. Raises Conflict if the name is taken."""
        return await self._access.write(lambda db: self._create(db, key, options))

    async def list_collections(self, tenant: str) -> list[Collection]:
        """Return the collections of a tenant ordered by name."""
        return await self._access.read(lambda db: _read_collections(db, tenant))

    async def find_collection(self, key: CollectionKey) -> Collection | None:
        """Return a collection, or None if the name is unknown."""
        matches = await self._access.read(lambda db: _read_collections(db, key.tenant, key.name))
        return next(iter(matches), None)

    async def delete_collection(self, key: CollectionKey) -> None:
        """Remove a collection with its documents. Raises NotFound if the collection does not exist."""
        await self._access.write(lambda db: _delete_collection(db, key))

    async def find_digests(self, key: CollectionKey, sources: Sequence[str]) -> dict[str, str]:
        """Return the digests of the stored documents by source. The result is empty if the collection is unknown."""
        return await self._access.read(lambda db: _read_digests(db, key, sources))

    async def ingest(
        self,
        key: CollectionKey,
        options: CollectionOptions,
        documents: Sequence[SplitDocument],
        unchanged: Mapping[str, str],
    ) -> IngestResult:
        """Store all documents with their chunks, or nothing. Creates the collection if it does not exist."""
        return await self._access.write(lambda db: self._ingest(db, key, options, documents, unchanged))

    async def delete_documents(self, key: CollectionKey, sources: Sequence[str]) -> int:
        """Remove documents and return how many were removed. Raises NotFound if the collection does not exist."""
        return await self._access.write(lambda db: _delete_documents(db, key, sources))

    def _create(self, db: Connection, key: CollectionKey, options: CollectionOptions) -> Collection:
        if not self._insert(db, key, options):
            raise Conflict(f"a collection named {key.name!r} exists already")
        return read_collection(db, key)

    def _insert(self, db: Connection, key: CollectionKey, options: CollectionOptions) -> bool:
        """Create a collection unless it exists. Returns whether it was created."""
        made = db.execute(
            self._access.insert(collections)
            .values(
                tenant=key.tenant,
                name=key.name,
                created_at=self._clock.now().isoformat(),
                revision=0,
                whole_revision=0,
                embedding_model=options.embedding_model,
                language=options.language,
                query_prefix=options.prefixes.query,
                document_prefix=options.prefixes.document,
            )
            .on_conflict_do_nothing()
            .returning(collections.c.id)
        )
        if made.scalar_one_or_none() is None:
            return False
        count = db.execute(select(func.count()).where(collections.c.tenant == key.tenant)).scalar_one()
        if count > self._max_collections:
            raise PreconditionFailed(f"there are {self._max_collections} collections, the most: delete one first")
        return True

    def _ingest(
        self,
        db: Connection,
        key: CollectionKey,
        options: CollectionOptions,
        split: Sequence[SplitDocument],
        unchanged: Mapping[str, str],
    ) -> IngestResult:
        self._insert(db, key, options)
        revision = next_revision(db, key)
        row = find_row(db, key)
        if read_options(row) != options or _read_digests(db, key, list(unchanged)) != unchanged:
            raise Conflict(f"collection {key.name!r} was changed meanwhile: send the documents again")
        digests = _read_digests(db, key, [entry.document.source for entry in split])
        changed = [entry for entry in split if digests.get(entry.document.source) != entry.document.digest]
        replaced = [entry.document.source for entry in changed if entry.document.source in digests]
        _remove(db, row.id, revision, replaced)
        counts = _insert_documents(db, row, revision, changed)
        collection = read_collection(db, key)
        self._check_bounds(collection, counts.metadata_bytes)
        if counts.stored_bytes > row.stored_bytes:
            self._check_tenant(db, key.tenant)
        return IngestResult(collection, len(changed) - len(replaced), len(replaced), len(split) - len(changed))

    def _check_bounds(self, collection: Collection, held_bytes: int) -> None:
        name = collection.name
        if held_bytes > self._max_metadata_bytes:
            raise PreconditionFailed(
                f"the documents of collection {name!r} would have {held_bytes} bytes of sources and metadata, at most "
                f"{self._max_metadata_bytes} are allowed: shorten the metadata or use another collection"
            )
        if (count := collection.chunk_count) > self._max_chunks:
            raise PreconditionFailed(
                f"collection {name!r} would have {count} chunks, at most {self._max_chunks} are allowed: "
                "delete documents or use another collection"
            )

    def _check_tenant(self, db: Connection, tenant: str) -> None:
        if self._max_tenant_bytes is None:
            return
        used_bytes, max_bytes = tenant_bytes(db, tenant), self._max_tenant_bytes or room_bytes(db)
        if used_bytes > max_bytes:
            raise Overloaded(
                f"the collections of tenant {tenant!r} would have {used_bytes} bytes, at most {max_bytes} are kept "
                "(MAX_STORED_BYTES_OF_TENANT): delete documents or collections",
                code=ErrorCode.QUOTA_STORAGE,
                retry_after_s=RETRY_AFTER_S,
            )


def find_row(db: Connection, key: CollectionKey) -> Row[Any]:
    """Return the row of a collection. Raises NotFound if the collection does not exist."""
    row = db.execute(select(collections).where(_is_named(key))).one_or_none()
    if row is None:
        raise _not_found(key)
    return row


def _is_named(key: CollectionKey) -> ColumnElement[bool]:
    return (collections.c.tenant == key.tenant) & (collections.c.name == key.name)


def _not_found(key: CollectionKey) -> NotFound:
    return NotFound(f"no collection is named {key.name!r}")


def read_options(row: Row[Any]) -> CollectionOptions:
    """Return the options stored in the row of a collection."""
    return CollectionOptions(row.embedding_model, row.language, Prefixes(row.query_prefix, row.document_prefix))


def next_revision(db: Connection, key: CollectionKey) -> int:
    """Increment and return a collection's revision, which serializes the writers of the collection."""
    raised = update(collections).where(_is_named(key)).values(revision=collections.c.revision + 1)
    revision = db.execute(raised.returning(collections.c.revision)).scalar_one_or_none()
    if revision is None:
        raise _not_found(key)
    return int(revision)


def read_collection(db: Connection, key: CollectionKey) -> Collection:
    """Return a collection that is known to exist."""
    (collection,) = _read_collections(db, key.tenant, key.name)
    return collection


def _read_collections(db: Connection, tenant: str, name: str | None = None) -> list[Collection]:
    mine = collections.c.tenant == tenant
    if name is not None:
        mine &= collections.c.name == name
    counts = [
        select(func.count()).where(table.c.collection_id == collections.c.id).scalar_subquery().label(label)
        for label, table in _COUNTED
    ]
    rows = db.execute(select(collections, *counts).where(mine).order_by(collections.c.name)).all()
    return [_to_collection(row) for row in rows]


_COUNTED = (("document_count", documents), ("chunk_count", chunks), ("unembedded_count", unembedded))


def _to_collection(row: Row[Any]) -> Collection:
    embedded_count = 0
    if row.embedding_model:
        embedded_count = row.chunk_count - row.unembedded_count
    return Collection(
        name=row.name,
        created_at=datetime.fromisoformat(row.created_at).astimezone(UTC),
        options=read_options(row),
        document_count=row.document_count,
        chunk_count=row.chunk_count,
        embedded_chunk_count=embedded_count,
    )


def _delete_collection(db: Connection, key: CollectionKey) -> None:
    # The row is deleted first: this waits for a writer that has locked it, and later writers no longer see it.
    collection_id = db.execute(
        delete(collections).where(_is_named(key)).returning(collections.c.id)
    ).scalar_one_or_none()
    if collection_id is None:
        raise _not_found(key)
    for table in (embeddings, unembedded, chunks, documents, removals):
        db.execute(delete(table).where(table.c.collection_id == collection_id))


def _read_digests(db: Connection, key: CollectionKey, sources: Sequence[str]) -> dict[str, str]:
    joined = select(documents.c.source, documents.c.digest).join(
        collections, collections.c.id == documents.c.collection_id
    )
    digests: dict[str, str] = {}
    for some in batches(list(sources)):
        digests |= {
            row.source: row.digest for row in db.execute(joined.where(_is_named(key), documents.c.source.in_(some)))
        }
    return digests


def _delete_documents(db: Connection, key: CollectionKey, sources: Sequence[str]) -> int:
    revision = next_revision(db, key)
    return _remove(db, find_row(db, key).id, revision, sorted(set(sources)))


def _remove(db: Connection, collection_id: int, revision: int, sources: Sequence[str]) -> int:
    """Remove documents with their derived data, and record the removals. Returns the number of documents."""
    removed = removed_bytes = freed_bytes = 0
    for some in batches(sources):
        mine = (documents.c.collection_id == collection_id) & documents.c.source.in_(some)
        rows = db.execute(select(documents.c.id, documents.c.source, documents.c.metadata_json).where(mine)).all()
        ids = [row.id for row in rows]
        removed_bytes += sum(len(row.source.encode()) + len(row.metadata_json.encode()) for row in rows)
        of_these = select(chunks.c.id).where(chunks.c.document_id.in_(ids))
        db.execute(delete(unembedded).where(unembedded.c.chunk_id.in_(of_these)))
        for table, which in (
            (embeddings, embeddings.c.chunk_id.in_(of_these)),
            (chunks, chunks.c.document_id.in_(ids)),
            (documents, documents.c.id.in_(ids)),
        ):
            freed_bytes += count_bytes(db, table, which)
            db.execute(delete(table).where(which))
        if ids:
            gone = [
                {"collection_id": collection_id, "document_id": document_id, "revision": revision}
                for document_id in ids
            ]
            db.execute(insert(removals), gone)
        removed += len(ids)
    if removed:
        add_bytes(db, collection_id, -freed_bytes, -removed_bytes)
        _forget_removals(db, collection_id)
    return removed


def _forget_removals(db: Connection, collection_id: int) -> None:
    """Delete the oldest removal records. An index that has not applied them must read the whole collection."""
    mine = removals.c.collection_id == collection_id
    if db.execute(select(func.count()).where(mine)).scalar_one() <= MAX_REMOVALS:
        return
    newest = select(removals.c.revision).where(mine).order_by(removals.c.revision.desc())
    last = db.execute(newest.offset(MAX_REMOVALS // 2).limit(1)).scalar_one()
    db.execute(delete(removals).where(mine, removals.c.revision <= last))
    # A later revision that a Reembed request has set is kept.
    earlier = (collections.c.id == collection_id) & (collections.c.whole_revision < last)
    db.execute(update(collections).where(earlier).values(whole_revision=last))


def _insert_documents(db: Connection, collection: Row[Any], revision: int, split: Sequence[SplitDocument]) -> Row[Any]:
    """Store the documents of a revision, and return the new sizes of the collection."""
    for entry in split:
        _insert_document(db, collection, revision, entry)
    added_bytes = sum(
        count_bytes(db, table, (table.c.collection_id == collection.id) & (table.c.revision == revision))
        for table in (documents, chunks)
    )
    return add_bytes(db, collection.id, added_bytes, sum(entry.document.metadata_bytes for entry in split))


def _insert_document(db: Connection, collection: Row[Any], revision: int, split: SplitDocument) -> None:
    document = split.document
    made = insert(documents).values(
        collection_id=collection.id,
        revision=revision,
        source=document.source,
        digest=document.digest,
        metadata_json=document.metadata_json,
        outline_json=document.outline.to_json(),
        text=document.content,
    )
    document_id = db.execute(made.returning(documents.c.id)).scalar_one()
    rows = []
    for position, (piece, terms) in enumerate(zip(split.pieces, split.terms, strict=True)):
        content = document.content[piece.start : piece.end]
        rows.append(
            {
                "collection_id": collection.id,
                "revision": revision,
                "document_id": document_id,
                "position": position,
                "start_char": piece.start,
                "end_char": piece.end,
                "page": piece.page,
                "heading": piece.heading,
                "content": content,
                "content_digest": content_digest(content),
                "terms": terms.to_bytes(),
            }
        )
    if rows:
        db.execute(insert(chunks), rows)
    if collection.embedding_model:
        waiting = select(chunks.c.id, chunks.c.collection_id).where(chunks.c.document_id == document_id)
        db.execute(insert(unembedded).from_select(["chunk_id", "collection_id"], waiting))


def batches(values: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the values in batches that fit into one statement."""
    return [values[start : start + MAX_PARAMETERS] for start in range(0, len(values), MAX_PARAMETERS)]


class SqlSources:
    """Implements SourceStore with the store's database."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    async def list_sources(self, key: CollectionKey, prefix: str) -> list[str]:
        """Return the sources that start with a prefix. The result is empty if the collection is unknown."""
        return await self._access.read(lambda db: _list_sources(db, key, prefix))


def _list_sources(db: Connection, key: CollectionKey, prefix: str) -> list[str]:
    try:
        collection_id = find_row(db, key).id
    except NotFound:
        return []
    mine = documents.c.collection_id == collection_id
    below = documents.c.source.startswith(prefix, autoescape=True)  # SQLite's LIKE ignores case.
    sources = db.execute(select(documents.c.source).where(mine & below)).scalars()
    return [source for source in sources if source.startswith(prefix)]
