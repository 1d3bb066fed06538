"""The storage of budgets in each database: what it keeps, and what orchestrators get that ask at the same time."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.admission.budget import GRANT_FACTOR, NOTHING, Amount, Budget, Period
from services.orchestrator.core.model.keys import Account

NOW = datetime(2026, 5, 17, 12, tzinfo=UTC)
NOW_S = NOW.timestamp()
DAY_S = 86_400.0
ACME = Account("acme")


def budget(tenant="acme", tokens=1000, micro_usd=None, period=Period.DAY, subject=""):
    return Budget(Account(tenant, subject), period, tokens, micro_usd, period.start_of(NOW).timestamp())


async def test_a_budget_is_kept_changed_and_deleted(journal):
    assert await journal.find_budget(ACME, NOW_S) is None
    assert await journal.grant(ACME, Amount(1), NOW_S) is None
    assert await journal.set_budget(budget()) == budget()
    assert await journal.find_budget(ACME, NOW_S) == budget()
    changed = budget(tokens=None, micro_usd=5)
    assert await journal.set_budget(changed) == changed
    assert await journal.find_budget(ACME, NOW_S) == changed
    await journal.set_budget(budget(tokens=None))
    assert await journal.find_budget(ACME, NOW_S) is None


async def test_a_grant_counts_until_it_is_given_back(journal):
    await journal.set_budget(budget())
    given = await journal.grant(ACME, Amount(10), NOW_S)
    assert given.granted == Amount(10 * GRANT_FACTOR)
    assert given.budget.granted == Amount(10 * GRANT_FACTOR)
    await journal.give_back(ACME, Amount(60), given.budget.identity)
    assert (await journal.find_budget(ACME, NOW_S)).granted == Amount(10 * GRANT_FACTOR - 60)
    assert (await journal.grant(ACME, Amount(740), NOW_S)).granted == Amount(1000 - 10 * GRANT_FACTOR + 60)
    assert (await journal.grant(ACME, Amount(1), NOW_S)).granted is None


async def test_other_limits_keep_what_was_granted_and_another_period_does_not(journal):
    await journal.set_budget(budget())
    await journal.grant(ACME, Amount(10), NOW_S)
    assert (await journal.set_budget(budget(tokens=50))).granted == Amount(10 * GRANT_FACTOR)
    assert (await journal.grant(ACME, Amount(1), NOW_S)).granted is None
    assert (await journal.set_budget(budget(period=Period.MONTH))).granted == NOTHING


async def test_a_new_period_begins_anew_and_takes_nothing_back_from_the_old_one(journal):
    await journal.set_budget(budget())
    old = await journal.grant(ACME, Amount(1000), NOW_S)
    tomorrow = NOW_S + DAY_S
    assert (await journal.find_budget(ACME, tomorrow)).granted == NOTHING
    new = await journal.grant(ACME, Amount(10), tomorrow)
    assert new.granted == Amount(10 * GRANT_FACTOR)
    assert new.budget.period_start == old.budget.period_start + DAY_S
    await journal.give_back(ACME, Amount(500), old.budget.identity)
    assert (await journal.find_budget(ACME, tomorrow)).granted == Amount(10 * GRANT_FACTOR)
    late = await journal.grant(ACME, Amount(10), NOW_S)  # an orchestrator whose clock is behind
    assert late.budget.period_start == new.budget.period_start


async def test_what_was_granted_of_a_budget_does_not_come_back_to_another_one(journal):
    for other in (budget(tokens=None), budget(period=Period.MONTH)):
        await journal.set_budget(replace(budget(), made_at=1.0))
        given = await journal.grant(ACME, Amount(10), NOW_S)
        await journal.set_budget(replace(other, made_at=2.0))
        await journal.set_budget(replace(budget(), made_at=3.0))
        await journal.give_back(ACME, given.granted, given.budget.identity)
        assert (await journal.find_budget(ACME, NOW_S)).granted == NOTHING
        await journal.set_budget(budget(tokens=None))


async def test_budgets_are_listed_by_tenant_in_pages(journal):
    for tenant in ("c", "a", "b"):
        await journal.set_budget(budget(tenant))
    first = await journal.list_budgets(limit=2, after="", now_s=NOW_S)
    assert [one.account.tenant for one in first.items] == ["a", "b"]
    last = await journal.list_budgets(limit=2, after=first.next_token, now_s=NOW_S)
    assert ([one.account.tenant for one in last.items], last.next_token) == (["c"], "")
    with pytest.raises(InvalidRequest):
        await journal.list_budgets(limit=2, after='["a","\\ud800"]', now_s=NOW_S)


async def test_orchestrators_that_ask_at_the_same_time_get_no_more_than_there_is(journals, database_url):
    owners = ["one"] if database_url.startswith("sqlite") else ["one", "two", "three"]
    opened = [await journals(owner) for owner in owners]
    await opened[0].set_budget(budget(tokens=10_000, micro_usd=3_000))
    asked = [journal.grant(ACME, Amount(40, 10), NOW_S) for journal in opened for _ in range(60)]
    granted = [one.granted for one in await asyncio.gather(*asked)]
    left = await opened[-1].find_budget(ACME, NOW_S)
    assert min(left.left().tokens, left.left().micro_usd) >= 0
    assert left.left().tokens < 40, "something was refused that could be granted"
    total = NOTHING
    for one in granted:
        total += one or NOTHING
    assert replace(left, granted=total) == left


async def test_a_subject_has_a_budget_of_its_own_beside_its_tenants(journal):
    subject = Account("acme", "a/ci")
    await journal.set_budget(budget())
    await journal.set_budget(budget(subject=subject.subject, tokens=50))
    assert (await journal.grant(subject, Amount(50), NOW_S)).granted == Amount(50)
    assert (await journal.grant(subject, Amount(1), NOW_S)).granted is None
    assert (await journal.find_budget(ACME, NOW_S)).granted == NOTHING
    first = await journal.list_budgets(limit=1, after="", now_s=NOW_S)
    last = await journal.list_budgets(limit=1, after=first.next_token, now_s=NOW_S)
    assert await journal.has_subject_budgets("acme")
    assert [*first.items, *last.items] == [budget(), replace(budget(subject="a/ci", tokens=50), granted=Amount(50))]
    await journal.set_budget(budget(subject=subject.subject, tokens=None))
    assert await journal.find_budget(subject, NOW_S) is None
    assert not await journal.has_subject_budgets("acme")
    assert await journal.find_budget(ACME, NOW_S) == budget()
