"""What every store of the audit does, in each database."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text

from pagantic_common.domain.calls.audit import AuditEntry, find_problems
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.adapters.journal.upkeep.purge import forget_old_audit_records

ENTRY = AuditEntry(1_700_000_000_000_001, "acme", "ci", "api_key", "k1", "S/Execute", "session s", "r", "allowed")


async def records_of(journal, tenant="", limit=3):
    found, token = [], ""
    while True:
        page = await journal.list_audit_records(tenant=tenant, limit=limit, after=token)
        found += page.items
        if not (token := page.next_token):
            return found


async def stored(journal, count):
    """Wait until so many records are stored, and return them."""
    async with asyncio.timeout(60):
        while len(records := await records_of(journal)) < count:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
    return records


async def test_entries_become_a_chain_of_each_orchestrator_in_their_order(journals):
    journal, other = await journals("one"), await journals("two")
    for number in range(7):
        journal.add_audit_entry(replace(ENTRY, request_id=f"r{number}"))
    other.add_audit_entry(replace(ENTRY, tenant="beta"))
    records = await stored(other, 8)
    assert [(one.owner, one.position) for one in records] == [("one", at) for at in range(1, 8)] + [("two", 1)]
    assert [one.entry.request_id for one in records[:7]] == [f"r{number}" for number in range(7)]
    assert records[0].entry == replace(ENTRY, request_id="r0")
    assert list(find_problems(records)) == []
    assert [one.owner for one in await records_of(journal, "beta")] == ["two"]


async def test_a_chain_goes_on_after_a_restart(journals):
    journal = await journals("one", audit_key=b"a secret of sixteen")
    journal.add_audit_entry(ENTRY)
    await journal.close()
    again = await journals("one", audit_key=b"a secret of sixteen")
    again.add_audit_entry(ENTRY)
    records = await stored(again, 2)
    assert [one.position for one in records] == [1, 2]
    assert list(find_problems(records, b"a secret of sixteen")) == []
    assert list(find_problems(records))


@pytest.mark.sql_only
async def test_old_records_are_purged_but_the_last_of_a_chain(journals):
    journal, other = await journals("one"), await journals("two")
    for number in range(5):
        journal.add_audit_entry(replace(ENTRY, at_us=number))
    other.add_audit_entry(replace(ENTRY, at_us=0))
    await stored(journal, 6)
    with journal._engine.begin() as db:
        assert forget_old_audit_records(db, 3, 2) == 2
        assert forget_old_audit_records(db, 3, 2) == 1
        assert forget_old_audit_records(db, 3, 2) == 0
    records = await records_of(journal)
    assert [(one.owner, one.position) for one in records] == [("one", 4), ("one", 5), ("two", 1)]
    assert list(find_problems(records)) == []
    with journal._engine.begin() as db:
        assert forget_old_audit_records(db, 100, 10) == 1
    other.add_audit_entry(ENTRY)
    assert [one.position for one in await stored(other, 3) if one.owner == "two"] == [1, 2]


@pytest.mark.sql_only
@pytest.mark.parametrize("column", ["at_us", "tenant", "subject", "decision", "code", "digest", "previous"])
async def test_a_row_that_was_changed_in_the_database_is_found(journal, column):
    for _ in range(3):
        journal.add_audit_entry(ENTRY)
    await stored(journal, 3)
    value = {"at_us": "at_us + 1", "digest": "previous", "previous": "digest"}.get(column, f"{column} || ' '")
    with journal._engine.begin() as db:
        db.execute(text(f"UPDATE audit_records SET {column} = {value} WHERE position = 2"))  # noqa: S608
    assert {problem.position for problem in find_problems(await records_of(journal))} & {2, 3}


@pytest.mark.parametrize("token", ["x", "1", "-1/one", "9999999999999999999/one", "1/\0"])
async def test_a_made_up_page_token_is_refused(journal, token):
    with pytest.raises(InvalidRequest, match="page_token"):
        await journal.list_audit_records(tenant="", limit=1, after=token)
