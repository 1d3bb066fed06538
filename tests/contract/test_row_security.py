"""PostgreSQL's own line between tenants, whatever a query forgets."""

import uuid

import psycopg
import pytest
from sqlalchemy import text

from services.orchestrator.adapters.journal.database import see_only
from services.orchestrator.adapters.journal.schema import TABLES
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.keys import SessionKey

OPERATORS = {"api_keys", "budgets", "audit_records"}  # operators see those of every tenant
WITH_TENANTS = sorted(name for name, table in TABLES.tables.items() if "tenant" in table.columns)


@pytest.fixture
async def journal(postgres):
    """A journal whose role is no superuser, as PostgreSQL asks of those whom it restricts."""
    name = f"j{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        connection.execute(f"CREATE DATABASE {name} OWNER {name}")
    server = postgres.rsplit("/", 1)[0].rsplit("@", 1)[1]
    opened = SqlJournal(f"postgresql://{name}@{server}/{name}")
    await opened.open()
    for tenant in ("acme", "beta"):
        await opened.update_state(SessionKey(tenant, "s"), {"k": f'"{tenant}"'}, [])
        await opened.put_summary(SessionKey(tenant, "s"), Summary(tenant, 1))
    yield opened
    await opened.close()


def rows_of(journal, table, tenant):
    """Return the tenants of all rows that a query without a condition finds."""
    with journal._engine.connect() as db:
        if tenant is not None:
            see_only(db, tenant)
        return sorted(db.execute(text(f"SELECT tenant FROM {table}")).scalars())  # noqa: S608


@pytest.mark.parametrize("table", ["sessions", "session_state", "summaries"])
async def test_a_query_without_a_condition_finds_the_rows_of_its_tenant_alone(journal, table):
    assert rows_of(journal, table, "acme") == ["acme"]
    assert rows_of(journal, table, "beta") == ["beta"]
    assert rows_of(journal, table, "other") == []
    assert rows_of(journal, table, None) == ["acme", "beta"], "the writer writes for all of them"


async def test_a_connection_that_names_no_tenant_finds_nothing(journal):
    url = journal._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


async def test_every_table_with_tenants_has_a_policy_but_those_of_operators(journal):
    with journal._engine.connect() as db:
        found = db.execute(text("SELECT tablename FROM pg_policies")).scalars().all()
        forced = db.execute(text("SELECT relname FROM pg_class WHERE relforcerowsecurity")).scalars().all()
    assert sorted(found) == sorted(forced) == [name for name in WITH_TENANTS if name not in OPERATORS]


async def test_reads_see_their_tenant_and_the_next_transaction_sees_its_own(journal):
    for tenant in ("acme", "beta", "acme"):
        assert (await journal.session_state(SessionKey(tenant, "s")))["k"] == f'"{tenant}"'
    assert (await journal.session_state(SessionKey("other", "s"))) == {}
    await journal.update_state(SessionKey("acme", "s"), {"k": "1"}, [])
    assert (await journal.get_summary(SessionKey("beta", "s"))).text == "beta"
