"""Databases that the journal is held against."""

import base64
import uuid

import psycopg
import pytest

from services.orchestrator.adapters.journal.sealing import read_journal_keys
from services.orchestrator.adapters.journal.sql_journal import SqlJournal

KEY = base64.b64encode(bytes(range(32)))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.sqlite3'}"
    return request.getfixturevalue("postgresql_url")


@pytest.fixture
def postgresql_url(postgres):
    """The URL of an empty database that several replicas may use."""
    name = f"j{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.rsplit("/", 1)[0] + f"/{name}"


@pytest.fixture(params=["plain", "sealed"])
async def journals(request, database_url, tmp_path):
    """Make journals of owners in one database; they are closed afterwards."""
    opened, path = [], None
    if request.param == "sealed":
        path = tmp_path / "journal-keys"
        path.write_bytes(KEY)

    async def make(owner="local", **settings):
        journal = SqlJournal(database_url, owner=owner, sealing=read_journal_keys(path), **settings)
        opened.append(journal)
        await journal.open()
        return journal

    yield make
    for journal in opened:
        await journal.close()


@pytest.fixture
async def journal(journals):
    return await journals()
