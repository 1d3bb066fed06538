"""Collections in one SQLite file. A commit waits for the disk (WAL, synchronous=FULL); one thread uses it at a time."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from services.context.core.document import Collection, CollectionKey, Document
from services.context.ports import IngestResult, Version

_SCHEMA_VERSION = 2
_COLLECTIONS = """(
    id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, name TEXT NOT NULL, created_at TEXT NOT NULL,
    revision INTEGER NOT NULL, UNIQUE (tenant, name)
) STRICT;"""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS collections {_COLLECTIONS}
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY,
    collection_id INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,
    source TEXT NOT NULL, digest TEXT NOT NULL, metadata_json TEXT NOT NULL,
    UNIQUE (collection_id, source)
) STRICT;
CREATE TABLE IF NOT EXISTS chunks (
    document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    position INTEGER NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (document_id, position)
) STRICT, WITHOUT ROWID;
"""
# Version 1 knew no tenants.
_MIGRATION = f"""
CREATE TABLE renewed {_COLLECTIONS}
INSERT INTO renewed SELECT id, '{DEFAULT_TENANT}', name, created_at, revision FROM collections;
DROP TABLE collections;
ALTER TABLE renewed RENAME TO collections;
"""  # noqa: S608 - made of constants
_COUNTS = """
SELECT c.name, c.created_at, count(DISTINCT d.id), count(k.position) FROM collections c
LEFT JOIN documents d ON d.collection_id = c.id LEFT JOIN chunks k ON k.document_id = d.id
"""


class SqliteStore:
    """Implements DocumentStore; methods run in threads.

    Args:
        path: The file, which is created with its folder if missing. Raises InvalidRequest when it cannot be used.
        clock: The time of creation of collections.
        max_chunks: Most chunks of one collection; a larger ingest raises PreconditionFailed.
        max_collections: Most collections of one tenant; creating another raises PreconditionFailed.
    """

    def __init__(self, path: Path, clock: Clock, max_chunks: int, max_collections: int = 1000) -> None:
        self._clock = clock
        self._max_chunks = max_chunks
        self._max_collections = max_collections
        self._problem = ""
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise InvalidRequest(f"the data folder cannot be used: {error}") from None
        try:
            _prepare(self._db)
        except (sqlite3.Error, InvalidRequest) as error:
            self._db.close()
            raise InvalidRequest(f"the store in the data folder cannot be used: {error}") from None

    def close(self) -> None:
        """Close the file after the current use."""
        with self._lock:
            self._db.close()

    async def why_not_ready(self) -> str:
        """Return the reason why the store cannot be used; empty when it can. Tries the store if its last use failed.

        On a full volume the service stays ready, because reading works; an Ingest gets the error.
        """
        if not self._problem:
            return ""
        with suppress(Unavailable):
            await asyncio.to_thread(self._try_writing)
        if not self._problem:
            return ""
        return f"the store cannot be used: {self._problem}"

    async def create_collection(self, key: CollectionKey) -> Collection:
        """Make an empty collection; raises Conflict when the name is taken."""
        return await asyncio.to_thread(self._create_collection, key)

    async def list_collections(self, tenant: str) -> list[Collection]:
        """Return the collections of a tenant by name."""
        return await asyncio.to_thread(self._list_collections, tenant)

    async def delete_collection(self, key: CollectionKey) -> None:
        """Remove a collection with its documents; raises NotFound."""
        await asyncio.to_thread(self._delete_collection, key)

    async def ingest(self, key: CollectionKey, documents: Sequence[tuple[Document, Sequence[str]]]) -> IngestResult:
        """Store documents with their chunks, all or none; creates a missing collection."""
        return await asyncio.to_thread(self._ingest, key, documents)

    async def delete_documents(self, key: CollectionKey, sources: Sequence[str]) -> int:
        """Remove documents and return their number; raises NotFound for the collection."""
        return await asyncio.to_thread(self._delete_documents, key, sources)

    async def version_of(self, key: CollectionKey) -> Version:
        """Return the collection's version; raises NotFound."""
        return await asyncio.to_thread(self._version_of, key)

    async def load_chunks(self, key: CollectionKey) -> tuple[Version, list[Chunk]]:
        """Return all chunks with their version; raises NotFound."""
        return await asyncio.to_thread(self._load_chunks, key)

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                with _committing(self._db, begin):
                    yield self._db
                self._problem = ""
            except sqlite3.DatabaseError as error:  # the disk is full, the file damaged, or held by another process
                self._problem = str(error)
                raise Unavailable(f"the store cannot be used: {error}") from error

    def _try_writing(self) -> None:
        with self._transaction() as db:
            db.execute("UPDATE collections SET revision = revision WHERE id = 0")

    def _create_collection(self, key: CollectionKey) -> Collection:
        with self._transaction() as db:
            if self._insert_collection(db, key) is None:
                raise Conflict(f"a collection named {key.name!r} exists already")
            return _read_collection(db, key)

    def _insert_collection(self, db: sqlite3.Connection, key: CollectionKey) -> int | None:
        sql = (
            "INSERT INTO collections (tenant, name, created_at, revision) VALUES (?, ?, ?, 0) "
            "ON CONFLICT DO NOTHING RETURNING id"
        )
        row = db.execute(sql, (key.tenant, key.name, self._clock.now().isoformat())).fetchone()
        if row is None:
            return None
        count = db.execute("SELECT count(*) FROM collections WHERE tenant = ?", (key.tenant,)).fetchone()[0]
        if count > self._max_collections:
            raise PreconditionFailed(f"there are {self._max_collections} collections, the most: delete one first")
        return int(row[0])

    def _list_collections(self, tenant: str) -> list[Collection]:
        with self._transaction("BEGIN") as db:
            rows = db.execute(f"{_COUNTS} WHERE c.tenant = ? GROUP BY c.id ORDER BY c.name", (tenant,))
            return [_to_collection(row) for row in rows]

    def _delete_collection(self, key: CollectionKey) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM collections WHERE id = ?", (_find(db, key)[0],))

    def _ingest(self, key: CollectionKey, documents: Sequence[tuple[Document, Sequence[str]]]) -> IngestResult:
        added = replaced = unchanged = 0
        with self._transaction() as db:
            self._insert_collection(db, key)
            collection_id, _ = _find(db, key)
            for document, chunks in documents:
                place = (collection_id, document.source)
                known = db.execute(
                    "SELECT digest FROM documents WHERE collection_id = ? AND source = ?", place
                ).fetchone()
                if known is not None and known[0] == document.digest:
                    unchanged += 1
                    continue
                if known is None:
                    added += 1
                else:
                    replaced += 1
                    db.execute("DELETE FROM documents WHERE collection_id = ? AND source = ?", place)
                _insert_document(db, collection_id, document, chunks)
            if added or replaced:
                db.execute("UPDATE collections SET revision = revision + 1 WHERE id = ?", (collection_id,))
            collection = _read_collection(db, key)
            if (count := collection.chunk_count) > self._max_chunks:
                raise PreconditionFailed(
                    f"collection {key.name!r} would have {count} chunks, at most {self._max_chunks} are allowed: "
                    "delete documents or use another collection"
                )
        return IngestResult(collection, added, replaced, unchanged)

    def _delete_documents(self, key: CollectionKey, sources: Sequence[str]) -> int:
        with self._transaction() as db:
            collection_id, _ = _find(db, key)
            sql = "DELETE FROM documents WHERE collection_id = ? AND source = ?"
            deleted = sum(db.execute(sql, (collection_id, source)).rowcount for source in set(sources))
            if deleted:
                db.execute("UPDATE collections SET revision = revision + 1 WHERE id = ?", (collection_id,))
        return deleted

    def _version_of(self, key: CollectionKey) -> Version:
        with self._transaction("BEGIN") as db:
            return _find(db, key)

    def _load_chunks(self, key: CollectionKey) -> tuple[Version, list[Chunk]]:
        of_documents = "SELECT id, source, metadata_json FROM documents WHERE collection_id = ?"
        of_chunks = (
            "SELECT k.document_id, k.position, k.content FROM documents d JOIN chunks k ON k.document_id = d.id "
            "WHERE d.collection_id = ? ORDER BY d.id, k.position"
        )
        with self._transaction("BEGIN") as db:
            version = _find(db, key)
            # Metadata is read once for each document, because every row holds its own copy of a text.
            documents = {row[0]: row[1:] for row in db.execute(of_documents, (version[0],))}
            rows = db.execute(of_chunks, (version[0],)).fetchall()
        return version, [
            Chunk(str(position), content, source=documents[document][0], metadata_json=documents[document][1])
            for document, position, content in rows
        ]


@contextmanager
def _committing(db: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Begin a transaction, and commit it; an error inside rolls it back."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _prepare(db: sqlite3.Connection) -> None:
    # A table that others refer to can only be replaced while references are not enforced.
    db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF;")
    with _committing(db, "BEGIN IMMEDIATE"):
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > _SCHEMA_VERSION:
            raise InvalidRequest(f"it has schema version {version}, this service reads {_SCHEMA_VERSION}")
        for statement in _statements(_MIGRATION * (version == 1) + _SCHEMA):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    db.execute("PRAGMA foreign_keys = ON")


def _statements(script: str) -> list[str]:
    return [statement for statement in script.split(";") if statement.strip()]


def _find(db: sqlite3.Connection, key: CollectionKey) -> Version:
    row = db.execute(
        "SELECT id, revision FROM collections WHERE tenant = ? AND name = ?", (key.tenant, key.name)
    ).fetchone()
    if row is None:
        raise NotFound(f"no collection is named {key.name!r}")
    return int(row[0]), int(row[1])


def _insert_document(db: sqlite3.Connection, collection_id: int, document: Document, chunks: Sequence[str]) -> None:
    document_id = db.execute(
        "INSERT INTO documents (collection_id, source, digest, metadata_json) VALUES (?, ?, ?, ?)",
        (collection_id, document.source, document.digest, document.metadata_json),
    ).lastrowid
    rows = [(document_id, position, content) for position, content in enumerate(chunks)]
    db.executemany("INSERT INTO chunks (document_id, position, content) VALUES (?, ?, ?)", rows)


def _read_collection(db: sqlite3.Connection, key: CollectionKey) -> Collection:
    sql = f"{_COUNTS} WHERE c.tenant = ? AND c.name = ? GROUP BY c.id"
    return _to_collection(db.execute(sql, (key.tenant, key.name)).fetchone())


def _to_collection(row: tuple[str, str, int, int]) -> Collection:
    name, created_at, document_count, chunk_count = row
    return Collection(name, document_count, chunk_count, datetime.fromisoformat(created_at).astimezone(UTC))
