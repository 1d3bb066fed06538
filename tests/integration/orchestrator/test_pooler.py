"""PgBouncer before the journal's PostgreSQL."""

import pytest

from pagantic_common.domain.errors import PreconditionFailed
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from tests.contract.test_changes import told, woken
from tests.support.journal_records import admit, happened, record
from tests.support.keys import execution
from tests.support.needs import PGBOUNCER, skip_without
from tests.support.pgbouncer import find_pgbouncer, running_pgbouncer


@pytest.fixture
def program():
    found = find_pgbouncer()
    if found is None:
        skip_without(PGBOUNCER)
    return found


async def test_a_pooler_in_session_mode_is_as_if_it_were_not_there(program, postgres_url):
    with running_pgbouncer(program, postgres_url, "session") as url:
        one, other = SqlJournal(url, owner="a"), SqlJournal(url, owner="b")
        await one.open()
        await other.open()
        await told(one, other)
        await admit(one)
        with other.watching(execution("r")) as watch:
            await one.write(happened(record(), 1))
            await woken(watch)
        assert set((await other.beat()).beats) == {"a", "b"}
        assert [one.sequence for one in await other.timeline(execution("r"))] == [1]
        await one.close()
        await other.close()


async def test_a_pooler_in_transaction_mode_is_refused(program, postgres_url):
    with running_pgbouncer(program, postgres_url, "transaction") as url:
        journal = SqlJournal(url, owner="a")
        with pytest.raises(PreconditionFailed, match="use its session mode"):
            await journal.open()


async def test_a_pooler_that_shares_connections_later_is_noticed_with_a_beat(postgres_url):
    journal = SqlJournal(postgres_url, owner="a")
    await journal.open()
    await journal.beat()
    journal._lock._backend = 1
    with pytest.raises(PreconditionFailed, match="use its session mode"):
        await journal.beat()
    await journal.close()
