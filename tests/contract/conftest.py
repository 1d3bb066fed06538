"""Databases that the journal is held against."""

import base64

import pytest

from services.orchestrator.adapters.journal.sealing import read_journal_keys
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from tests.support.databases import postgres_url, sqlite_url

KEY = base64.b64encode(bytes(range(32)))


def pytest_generate_tests(metafunc):
    """Run tests of payloads with plain and sealed columns; the others take sealed columns with PostgreSQL alone."""
    if "is_sealed" in metafunc.fixturenames and metafunc.definition.get_closest_marker("payloads"):
        metafunc.parametrize("is_sealed", [False, True], ids=["plain", "sealed"], indirect=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """The URL of a database with all tables and no rows."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "journal.sqlite3")
    return request.getfixturevalue("postgresql_url")


@pytest.fixture
def postgresql_url(postgres):
    """The URL of a database with all tables and no rows, which several replicas may use."""
    return postgres_url(postgres)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request, tmp_path):
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.sqlite3'}"
    return postgres_url(request.getfixturevalue("postgres"), is_empty=True)


@pytest.fixture
def is_sealed(request, database_url):
    return getattr(request, "param", database_url.startswith("postgresql"))


@pytest.fixture
async def journals(is_sealed, database_url, tmp_path):
    """Make journals of owners in one database; they are closed afterwards."""
    opened, path = [], None
    if is_sealed:
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
