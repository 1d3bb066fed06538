"""Sums of usage by chosen keys, in each database."""

import itertools
from collections import defaultdict

import pytest

from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.ports.journal import UsageKey, UsageTotal

KEYS = (UsageKey.SESSION, UsageKey.MODEL, UsageKey.SUBJECT)
NUMBERS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "cost_usd")
USED = [
    UsageTotal(session, model, 1, 10 * number, number, 2**40, 0.25, "acme", subject)
    for number, (session, model, subject) in enumerate(
        itertools.product(["", "s1", "s2"], ["a", "b"], ["", "ci", "web"])
    )
]
GROUPINGS = [frozenset(keys) for count in range(5) for keys in itertools.combinations(UsageKey, count)]


@pytest.fixture
async def ledger(journal):
    """A journal with usage of two tenants."""
    for used in [*USED, UsageTotal("s1", "a", 1, 1, 1, 1, 1.0, "beta", "ci")]:
        await journal.add_usage(used)
    return journal


def sums(keys, **filters):
    """Return the totals of USED by these keys, in their order."""
    rows = defaultdict(lambda: [0, 0, 0, 0, 0.0])
    for used in USED:
        if all(getattr(used, name) == value for name, value in filters.items()):
            row = rows[tuple(getattr(used, key) if key in keys else "" for key in KEYS)]
            row[:] = [total + getattr(used, name) for total, name in zip(row, NUMBERS, strict=True)]
    return [
        UsageTotal(**dict(zip((*KEYS, *NUMBERS), (*names, *row), strict=True)), tenant="acme")
        for names, row in sorted(rows.items())
    ]


async def listed(ledger, limit=100, **fields):
    """Return the totals of all pages."""
    totals, after = [], ""
    while True:
        page = await ledger.usage_totals(tenant="acme", limit=limit, after=after, **fields)
        assert len(page.items) <= limit
        totals += page.items
        if not (after := page.next_token):
            return totals


@pytest.mark.parametrize("group_by", GROUPINGS, ids=lambda keys: "+".join(sorted(keys)) or "default")
async def test_usage_is_summed_by_the_named_keys_in_pages_of_any_size(ledger, group_by):
    keys = group_by & set(KEYS) if group_by else set(KEYS)
    for limit in (1, 2, 100):
        assert await listed(ledger, limit, group_by=group_by) == sums(keys)
    assert await listed(ledger, group_by=group_by, model="a", subject="ci") == sums(keys, model="a", subject="ci")


async def test_the_tenant_alone_has_one_total_also_without_usage(ledger):
    (total,) = await listed(ledger, group_by={UsageKey.TENANT})
    assert (total.requests, total.output_tokens) == (18, 18 * 2**40)
    page = await ledger.usage_totals(tenant="third", limit=1, after="", group_by={UsageKey.TENANT})
    assert page.items == [UsageTotal("", "", tenant="third")]
    assert (await ledger.usage_totals(tenant="third", limit=1, after="", group_by={UsageKey.MODEL})).items == []


async def test_a_page_token_belongs_to_its_keys(ledger):
    tokens = {
        keys: (await ledger.usage_totals(tenant="acme", limit=1, after="", group_by=keys)).next_token
        for keys in (frozenset({UsageKey.MODEL}), frozenset({UsageKey.SUBJECT}), frozenset())
    }
    for (keys, _), (others, token) in itertools.product(tokens.items(), repeat=2):
        if keys != others:
            with pytest.raises(InvalidRequest, match="belongs to another group_by"):
                await ledger.usage_totals(tenant="acme", limit=1, after=token, group_by=keys)
    for token in ("[]", '["model"]', "{", "1"):
        with pytest.raises(InvalidRequest, match="page_token"):
            await ledger.usage_totals(tenant="acme", limit=1, after=token, group_by={UsageKey.MODEL})
