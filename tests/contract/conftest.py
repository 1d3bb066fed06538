"""Databases that the journal is held against."""

import uuid

import psycopg
import pytest

from services.orchestrator.adapters.journal.sql_journal import SqlJournal


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.sqlite3'}"
    url, name = request.getfixturevalue("postgres"), f"j{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return url.rsplit("/", 1)[0] + f"/{name}"


@pytest.fixture
async def journals(database_url):
    """Make journals of owners in one database; they are closed afterwards."""
    opened = []

    async def make(owner="local", **settings):
        journal = SqlJournal(database_url, owner=owner, **settings)
        opened.append(journal)
        await journal.open()
        return journal

    yield make
    for journal in opened:
        await journal.close()


@pytest.fixture
async def journal(journals):
    return await journals()
