"""Databases with the tables of the journal and of the collections: migrated once for each test worker, then copied."""

import shutil
import tempfile
import uuid
from functools import cache
from pathlib import Path

import psycopg
from sqlalchemy import create_engine

from pagantic_common.storage import migration
from pagantic_common.storage.database import check_url
from services.context.adapters.store.schema import SCHEMA as COLLECTIONS
from services.orchestrator.adapters.journal.schema import SCHEMA as JOURNAL


def sqlite_url(path):
    """Return the URL of a SQLite file with all tables; makes the file and its folder if they are not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_sqlite_template(), path)
    return f"sqlite:///{path}"


def postgres_url(server, *, is_empty=False):
    """Return the URL of a new database of a server, with all tables unless it is to be empty."""
    template = "template0" if is_empty else _postgres_template(server)
    return _create(server, template)


@cache
def _sqlite_template():
    path = Path(tempfile.mkdtemp(prefix="pagantic-template-")) / "tables.sqlite3"
    _migrate(f"sqlite:///{path}")
    return path


@cache
def _postgres_template(server):
    url = _create(server, "template0")
    _migrate(url)
    return url.rpartition("/")[2]


def _create(server, template):
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{server.rpartition('/')[0]}/{name}"


def _migrate(url):
    engine = create_engine(check_url(url, "a test"))
    with engine.begin() as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql("SET LOCAL pagantic.tenant = '*'")
        for schema in (JOURNAL, COLLECTIONS):
            migration.migrate(db, schema)
    engine.dispose()
