"""The database of the collections: its tables, its failures, and the files of earlier versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Unavailable
from services.context.adapters.store.access import StoreAccess
from services.context.adapters.store.schema import TABLES
from services.context.core.document import Document
from tests.support.context_app import Context, key


def test_the_migrations_make_the_tables_that_are_described(empty_database_url):
    with closing(StoreAccess(empty_database_url)) as access:
        found = sa.inspect(access._engine)
        for table in TABLES.tables.values():
            there = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
            assert there == {column.name: column.nullable for column in table.columns}
            assert {index["name"] for index in found.get_indexes(table.name)} >= {index.name for index in table.indexes}


@pytest.mark.parametrize("damage", [b"not a database, but long enough to be read as one" * 50, None])
def test_a_file_that_is_no_store_is_refused(tmp_path, damage):
    path = tmp_path / "context.sqlite3"
    if damage is None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE context_version (version_num TEXT)")
            db.execute("INSERT INTO context_version VALUES ('9999')")
            db.commit()
    else:
        path.write_bytes(damage)
    with pytest.raises(InvalidRequest, match="cannot be used"):
        StoreAccess(f"sqlite:///{path}")


async def test_a_commit_waits_for_the_disk(tmp_path):
    with closing(StoreAccess(f"sqlite:///{tmp_path / 'context.sqlite3'}")) as access:
        assert await access.read(lambda db: db.exec_driver_sql("PRAGMA synchronous").scalar()) == 2
        assert await access.read(lambda db: db.exec_driver_sql("PRAGMA journal_mode").scalar()) == "wal"


async def test_a_store_that_fails_is_not_ready_until_it_works(tmp_path):
    path = tmp_path / "context.sqlite3"
    with closing(Context(f"sqlite:///{path}")) as context:
        assert await context.access.why_not_ready() == ""
        await context.access.write(lambda db: db.exec_driver_sql("ALTER TABLE context_collections RENAME TO hidden"))
        with pytest.raises(Unavailable) as raised:
            await context.library.list_collections("acme")
        assert raised.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE
        assert "the store cannot be used" in await context.access.why_not_ready()
        await context.access.write(lambda db: db.exec_driver_sql("ALTER TABLE hidden RENAME TO context_collections"))
        assert await context.access.why_not_ready() == ""


@pytest.mark.parametrize("version", [1, 2])
async def test_collections_of_earlier_files_are_taken_over(tmp_path, version):
    path = tmp_path / "context.sqlite3"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(EARLIER[version])
    with closing(Context(f"sqlite:///{path}")) as context:
        (kept,) = await context.library.list_collections("default")
        assert (kept.name, kept.document_count, kept.chunk_count, kept.options.embedding_model) == ("docs", 1, 2, "")
        assert await context.library.list_collections("acme") == []
        found = await context.find("beta", tenant="default")
        assert [(one.source, one.content, one.id, one.metadata_json) for one in found] == [
            ("a", "beta", "1", '{"k": 1}')
        ]
        assert (await context.verification.verify(key("docs", "default"), 0)).differences == []
        counted = "SELECT metadata_bytes FROM context_collections"
        assert await context.access.read(lambda db: db.exec_driver_sql(counted).scalar()) == len('a{"k": 1}')
        again = await context.ingest(Document("a", "alpha beta"), tenant="default")
        assert again.replaced == 1
        await context.library.delete_collection(key("docs", "default"))
        assert (
            await context.access.read(lambda db: db.exec_driver_sql("SELECT count(*) FROM context_chunks").scalar())
            == 0
        )


_COLLECTIONS = {
    1: "CREATE TABLE collections (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, "
    "created_at TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;"
    "INSERT INTO collections VALUES (7, 'docs', '2026-01-02T03:04:05+00:00', 3);",
    2: "CREATE TABLE collections (id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, name TEXT NOT NULL, "
    "created_at TEXT NOT NULL, revision INTEGER NOT NULL, UNIQUE (tenant, name)) STRICT;"
    "INSERT INTO collections VALUES (7, 'default', 'docs', '2026-01-02T03:04:05+00:00', 3);",
}
EARLIER = {
    version: f"""
{collections}
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    collection_id INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,
    source TEXT NOT NULL, digest TEXT NOT NULL, metadata_json TEXT NOT NULL,
    UNIQUE (collection_id, source)
) STRICT;
CREATE TABLE chunks (
    document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    position INTEGER NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (document_id, position)
) STRICT, WITHOUT ROWID;
INSERT INTO documents VALUES (1, 7, 'a', 'x', '{{"k": 1}}');
INSERT INTO chunks VALUES (1, 0, 'alpha');
INSERT INTO chunks VALUES (1, 1, 'beta');
PRAGMA user_version = {version};
"""  # noqa: S608 - made of constants
    for version, collections in _COLLECTIONS.items()
}
