"""Two tenants that use the same ids see nothing of each other, in each database."""

import asyncio

import pytest

from pagantic_common.domain.errors import NotFound
from services.orchestrator.core.conversation.memory import Summary
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.model.request import Mode
from services.orchestrator.ports.journal import UsageTotal
from tests.contract.test_journal import TURN, admit, ended, event, happened, record
from tests.support.keys import execution, session

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
    filters = {"limit": 10, "after": "", "session_id": "", "state": None}
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
    assert await journal.interrupted(Mode.PLAN) == [execution("r", "acme")]
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
