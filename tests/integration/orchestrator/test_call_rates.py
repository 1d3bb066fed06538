"""Calls of a tenant and of a key in a time."""

import pytest
from pydantic import ValidationError

from pagantic_common.domain.calls.principal import Principal, PrincipalKind, Scope
from pagantic_common.domain.errors import ErrorCode, Overloaded
from services.orchestrator.adapters.access.call_rates import CallRates
from services.orchestrator.settings import OrchestratorSettings


def caller(tenant, key):
    return Principal(tenant, "ci", PrincipalKind.API_KEY, frozenset(Scope), key)


async def refused(rates, who):
    with pytest.raises(Overloaded) as caught:
        await rates.count(who)
    assert caught.value.code is ErrorCode.QUOTA_RATE
    assert 0 < caught.value.retry_after_s <= 3600
    return str(caught.value)


async def test_without_a_rate_any_number_is_let_in():
    rates = CallRates("", "")
    for _ in range(100):
        await rates.count(caller("acme", "a"))


async def test_each_key_and_all_of_a_tenant_have_their_rate():
    rates = CallRates("3/hour", "2/hour")
    one, two, other = caller("acme", "a"), caller("acme", "b"), caller("beta", "a")
    for _ in range(2):
        await rates.count(one)
    assert "this key" in await refused(rates, one)
    await rates.count(two)
    assert "tenant 'acme'" in await refused(rates, two)
    await rates.count(other)


async def test_a_caller_without_a_key_is_known_by_its_name():
    rates = CallRates("", "1/hour")
    await rates.count(Principal("acme", "one", PrincipalKind.TOKEN, frozenset()))
    await rates.count(Principal("acme", "two", PrincipalKind.TOKEN, frozenset()))
    await refused(rates, Principal("acme", "one", PrincipalKind.TOKEN, frozenset()))


async def test_the_window_slides():
    rates = CallRates("1/second", "")
    await rates.count(caller("acme", "a"))
    message = await refused(rates, caller("acme", "a"))
    assert "1 per 1 second" in message


@pytest.mark.parametrize("text", ["many", "10", "10/fortnight", "-1/minute"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValidationError, match="600/minute"):
        OrchestratorSettings(call_rate_of_key=text)
