"""Two tenants that use the same ids see nothing of each other, in each database."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from pagantic_common.domain.errors import NotFound, PaganticError
from services.orchestrator.adapters.journal.rows import among
from services.orchestrator.adapters.journal.schema import TABLES
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import SessionRecord, UsageTotal
from services.orchestrator.ports.page import Page
from tests.support.journal_records import TURN, admit, ended, event, happened, record
from tests.support.keys import execution, session
from tests.support.orchestrator_app import journal_url

TENANTS = ("acme", "beta")


async def admit_both(journal, **fields):
    for tenant in TENANTS:
        assert await admit(journal, tenant=tenant, **fields) is None


async def test_a_request_id_is_each_tenants_own(journal):
    await admit_both(journal, session_id="s")
    await journal.write(happened(record(tenant="acme", session_id="s"), 1, 2))
    await journal.write(ended(record(tenant="beta", session_id="s"), 1, turn=TURN))
    assert [one.sequence for one in await journal.timeline(execution("r", "acme"))] == [1, 2]
    assert [one.sequence for one in await journal.timeline(execution("r", "beta"))] == [1]
    assert (await journal.get(execution("r", "acme"))).response is None
    assert (await journal.get(execution("r", "beta"))).response.content == "hello"
    assert len(await journal.entries(execution("r", "acme"))) == 1, "the other's end deletes none"
    for missing in (journal.get, journal.timeline, journal.after_sequence):
        if missing == journal.after_sequence:
            assert await missing(execution("r", "third")) == 0
        else:
            with pytest.raises(NotFound):
                await missing(execution("r", "third"))


async def test_a_list_has_only_its_tenants(journal):
    for number, tenant in enumerate((*TENANTS, "acme")):
        await admit(journal, f"r{number}", tenant=tenant, session_id=f"s{number}")
        used = UsageTotal(f"s{number}", "m", 1, 10, tenant=tenant)
        await journal.write(
            ended(record(f"r{number}", tenant=tenant, session_id=f"s{number}"), 1, turn=TURN, used=used)
        )
    filters = {"limit": 10, "after": "", "session_id": "", "state": None, "metadata": {}}
    found = await journal.list_executions(tenant="acme", **filters)
    assert [(one.request_id, one.tenant) for one in found.items] == [("r2", "acme"), ("r0", "acme")]
    first = await journal.list_executions(tenant="acme", **filters | {"limit": 1})
    rest = await journal.list_executions(tenant="beta", **filters | {"after": first.next_token})
    assert [one.tenant for one in rest.items] == ["beta"], "another tenant's page token shows nothing of that tenant"
    sessions = await journal.list_sessions(tenant="beta", limit=10, after="")
    assert [one.session_id for one in sessions.items] == ["s1"]
    totals = await journal.usage_totals(tenant="beta", session_id=None, model=None, limit=10, after="")
    assert totals.items == [UsageTotal("s1", "m", 1, 10, tenant="beta")]


async def test_a_session_id_is_each_tenants_own(journal):
    mine, others = session("s", "acme"), session("s", "beta")
    for key, value in ((mine, "1"), (others, "2")):
        await journal.update_state(key, {"x": value}, ())
        await journal.put_summary(key, Summary(value, 2))
    await admit_both(journal, session_id="s")
    await journal.write(ended(record(tenant="acme", session_id="s"), 1, turn=TURN))
    assert (await journal.history(mine), await journal.history(others)) == ((0, TURN), (0, ()))
    await journal.delete_session(mine)
    with pytest.raises(NotFound):
        await journal.get_session(mine)
    with pytest.raises(NotFound):
        await journal.get(execution("r", "acme"))
    assert (await journal.get(execution("r", "beta"))).session_id == "s"
    assert await journal.session_state(others) == {"x": "2"}
    assert await journal.get_summary(others) == Summary("2", 2)


async def test_a_turn_is_taken_within_its_tenant(journal):
    for tenant in TENANTS:
        await admit(journal, "r1", tenant=tenant, session_id="s")
        assert await journal.take_turn(session("s", tenant), "r1")
    await admit(journal, "r2", tenant="acme", session_id="s")
    assert not await journal.take_turn(session("s", "acme"), "r2")
    await journal.write(ended(record("r1", tenant="beta", session_id="s"), 1))
    assert not await journal.take_turn(session("s", "acme"), "r2"), "the other's turn has ended, and this one has not"
    await journal.write(ended(record("r1", tenant="acme", session_id="s"), 1))
    assert await journal.take_turn(session("s", "acme"), "r2")


async def test_what_is_cancelled_claimed_and_released_is_one_tenants(journals):
    journal = await journals("a")
    await admit_both(journal, mode=Mode.PLAN)
    await journal.request_cancel(execution("r", "beta"))
    assert (await journal.beat()).to_cancel == (execution("r", "beta"),)
    await journal.release([execution("r", "acme")])
    assert await journal.interrupted(with_plans=True) == [execution("r", "acme")]
    assert not await journal.claim(execution("r", "beta"))
    assert await journal.claim(execution("r", "acme"))


async def test_one_group_writes_the_executions_of_both(journal):
    await asyncio.gather(*(admit(journal, tenant=tenant, session_id="s") for tenant in TENANTS))
    await asyncio.gather(
        journal.write(ended(record(tenant="acme", session_id="s"), 1, turn=TURN)),
        journal.write(happened(record(tenant="beta", session_id="s"), 1)),
    )
    states = [(await journal.get(execution("r", tenant))).state for tenant in TENANTS]
    assert states == [State.COMPLETE, State.INIT]
    assert await journal.timeline(execution("r", "beta")) == [event(1)]


async def outcome_of(call):
    """Return what a call gave, or the error that it raised, without times, which differ from run to run."""
    try:
        found = await call
    except PaganticError as error:
        return type(error), str(error)
    if isinstance(found, Page):
        return [steady(item) for item in found.items]
    return steady(found)


def steady(found):
    if isinstance(found, SessionRecord):
        return replace(found, created_at=None, updated_at=None)
    return found


# What may be done with a journal, by a tenant, with a request id and a session id.
METHODS = {
    "admit": lambda journal, tenant, one, talk: admit(journal, one, tenant=tenant, session_id=talk, mode=Mode.PLAN),
    "end": lambda journal, tenant, one, talk: journal.write(
        ended(
            record(one, tenant=tenant, session_id=talk), 1, turn=TURN, used=UsageTotal(talk, "m", 1, 1, tenant=tenant)
        )
    ),
    "get": lambda journal, tenant, one, _: journal.get(execution(one, tenant)),
    "timeline": lambda journal, tenant, one, _: journal.timeline(execution(one, tenant)),
    "release": lambda journal, tenant, one, _: journal.release([execution(one, tenant)]),
    "claim": lambda journal, tenant, one, _: journal.claim(execution(one, tenant)),
    "take a turn": lambda journal, tenant, one, talk: journal.take_turn(session(talk, tenant), one),
    "remember": lambda journal, tenant, one, talk: journal.update_state(session(talk, tenant), {one: "1"}, ()),
    "read": lambda journal, tenant, _, talk: journal.get_session(session(talk, tenant)),
    "delete": lambda journal, tenant, _, talk: journal.delete_session(session(talk, tenant)),
    "list": lambda journal, tenant, _, talk: journal.list_executions(
        tenant=tenant, limit=9, after="", session_id=talk, state=None, metadata={}
    ),
    "sessions": lambda journal, tenant, *_: journal.list_sessions(tenant=tenant, limit=9, after=""),
    "usage": lambda journal, tenant, *_: journal.usage_totals(
        tenant=tenant, session_id=None, model=None, limit=9, after=""
    ),
}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.sampled_from(sorted(METHODS)),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["s", "t"]),
    ),
    min_size=20,
    max_size=60,
)


async def check_steps(folder, steps):
    shared, alone = SqlJournal(journal_url(folder / "shared")), {}
    for tenant in TENANTS:
        alone[tenant] = SqlJournal(journal_url(folder / tenant))
    journals = [shared, *alone.values()]
    for journal in journals:
        await journal.open()
    try:
        for tenant, name, request_id, session_id in steps:
            call = METHODS[name]
            assert await outcome_of(call(shared, tenant, request_id, session_id)) == await outcome_of(
                call(alone[tenant], tenant, request_id, session_id)
            ), (tenant, name, request_id, session_id)
    finally:
        for journal in journals:
            await journal.close()


@pytest.mark.timeout(900)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_each_tenant_of_a_journal_sees_what_it_would_see_alone(steps):
    with TemporaryDirectory() as folder:
        asyncio.run(check_steps(Path(folder), steps))


@pytest.mark.sql_only
async def test_a_purge_finds_its_rows_by_their_key(journal):
    await admit_both(journal)
    keys = [execution(f"r{number}", tenant) for tenant in TENANTS for number in range(100)]
    for table in (TABLES.tables["events"], TABLES.tables["entries"], TABLES.tables["executions"]):
        if journal._engine.dialect.name != "sqlite":
            continue
        found = str(select(table.c.tenant).where(among(table, keys)).compile(compile_kwargs={"literal_binds": True}))
        plan = await journal._read("*", lambda db, found=found: db.execute(text(f"EXPLAIN QUERY PLAN {found}")).all())
        assert not [row for row in plan if row.detail.startswith("SCAN")], plan


@pytest.mark.sql_only
async def test_the_reads_of_a_tenant_leave_turns_to_another(journal):
    await admit_both(journal)
    gate, ended_reads = threading.Event(), []

    async def read(tenant):
        await journal.timeline(execution("r", tenant))
        ended_reads.append(tenant)

    running = asyncio.create_task(journal._read("acme", lambda _: gate.wait(60)))
    await asyncio.sleep(0)
    reads = [asyncio.create_task(read(tenant)) for tenant in [*["acme"] * 50, "beta", "beta"]]
    await asyncio.sleep(0)
    left = asyncio.create_task(read("acme"))
    await asyncio.sleep(0)
    left.cancel()
    gate.set()
    assert await running
    await asyncio.gather(*reads)
    first, second = (number for number, tenant in enumerate(ended_reads) if tenant == "beta")
    assert (first, second) in ((0, 2), (1, 3))  # The thread may begin before or after the reads come.
    assert len(ended_reads) == 52
