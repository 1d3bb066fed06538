"""Budgets as callers meet them: what is refused, what is settled, and what an operator sees."""

import asyncio
from dataclasses import replace

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.orchestrator.v1 import budget_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, Overloaded
from pagantic_common.rpc.call import call_unary
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.app import budgets as app_budgets
from services.orchestrator.app.budgets import Budgets
from services.orchestrator.core.admission.budget import GRANT_FACTOR, Amount
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.model.keys import DEFAULT_ACCOUNT, Account
from services.orchestrator.core.plans.planning import Planner
from tests.support.orchestrator_app import execute, orchestrator, system_request
from tests.support.scripted_services import USAGE, ScriptedInference, answer, scripted_services

DAY = budget_pb2.BUDGET_PERIOD_DAY
TOKENS = USAGE.prompt_tokens + USAGE.output_tokens


async def call(stub, method, **fields):
    return await call_unary("orchestrator", getattr(stub, method), getattr(pb, f"{method}Request")(**fields), 10)


async def set_budget(stub, **fields):
    return (await call(stub, "SetBudget", **{"period": DAY, **fields})).budget


async def settled(stub):
    """Return the budget once this orchestrator holds nothing of it."""
    await stub.budgets.stop()
    return (await call(stub, "GetBudget")).budget


async def test_what_was_used_is_settled_and_the_rest_given_back(tmp_path):
    async with orchestrator(tmp_path, scripted_services()) as stub:
        await set_budget(stub, max_tokens=100_000)
        for _ in range(3):
            assert (await execute(stub, system_request())).content == "hello"
        assert (await call(stub, "GetBudget")).budget.granted_tokens > 3 * TOKENS
        assert (await settled(stub)).granted_tokens == 3 * TOKENS


async def test_an_inference_that_may_not_fit_is_refused_before_it_begins(tmp_path):
    inference = ScriptedInference(answer())
    async with orchestrator(tmp_path, scripted_services(inference=inference)) as stub:
        await set_budget(stub, max_tokens=1200)
        hints = execution_pb2.ExecutionHints(max_tokens=2000)
        response = await execute(stub, system_request(hints=hints))
        assert response.error.code == error_pb2.ERROR_CODE_QUOTA_BUDGET
        assert not response.error.retryable
        assert "max_tokens" in response.error.message
        assert not inference.commands
        hints = execution_pb2.ExecutionHints(max_tokens=10)
        assert (await execute(stub, system_request(hints=hints))).content == "hello"
        assert (await settled(stub)).granted_tokens == TOKENS


async def test_money_is_limited_by_the_price_table(tmp_path):
    prices = {"": Prices(prompt_usd=1000.0, cached_prompt_usd=1000.0, output_usd=2000.0)}
    async with orchestrator(tmp_path, scripted_services(), prices=prices) as stub:
        await set_budget(stub, max_cost_usd=5.0)
        hints = execution_pb2.ExecutionHints(max_tokens=20)
        assert (await execute(stub, system_request(hints=hints))).content == "hello"
        cost = (USAGE.prompt_tokens * 1000 + USAGE.output_tokens * 2000) / 1e6
        assert (await settled(stub)).granted_cost_usd == pytest.approx(cost)
        hints = execution_pb2.ExecutionHints(max_tokens=2000)
        assert (await execute(stub, system_request(hints=hints))).error.code == error_pb2.ERROR_CODE_QUOTA_BUDGET


async def test_a_tenant_without_a_budget_may_use_what_it_likes_and_a_new_one_counts_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(app_budgets, "LOOK_S", 0.0)
    async with orchestrator(tmp_path, scripted_services()) as stub:
        assert (await execute(stub, system_request())).content == "hello"
        with pytest.raises(NotFound):
            await call(stub, "GetBudget")
        await set_budget(stub, max_tokens=10)
        assert (await execute(stub, system_request())).error.code == error_pb2.ERROR_CODE_QUOTA_BUDGET
        await set_budget(stub)
        assert (await execute(stub, system_request())).content == "hello"
        await set_budget(stub, tenant="other", max_tokens=1)
        assert (await execute(stub, system_request())).content == "hello"


async def test_other_limits_hold_within_a_look(tmp_path, monkeypatch):
    monkeypatch.setattr(app_budgets, "LOOK_S", 0.01)
    async with orchestrator(tmp_path, scripted_services()) as stub:
        stub.budgets.start()
        await set_budget(stub, max_tokens=100_000)
        assert (await execute(stub, system_request())).content == "hello"
        await set_budget(stub, max_tokens=50)
        for _ in range(300):
            response = await execute(stub, system_request())
            if response.error.code:
                break
            await asyncio.sleep(0.01)
        assert response.error.code == error_pb2.ERROR_CODE_QUOTA_BUDGET


async def test_an_inference_that_fails_is_settled_with_what_it_had_used(tmp_path):
    failing = ScriptedInference(InvalidRequest("no"))
    async with orchestrator(tmp_path, scripted_services(inference=failing)) as stub:
        await set_budget(stub, max_tokens=100_000)
        assert (await execute(stub, system_request())).error.code
        assert (await settled(stub)).granted_tokens == 0


async def test_a_plan_that_the_model_makes_is_refused_by_its_status(tmp_path):
    async with orchestrator(tmp_path, replace(scripted_services(), planner=Planner.MODEL)) as stub:
        await set_budget(stub, max_tokens=1)
        with pytest.raises(Overloaded) as refused:
            await call(stub, "CreatePlan", request=system_request(mode=execution_pb2.MODE_PLAN))
        assert refused.value.code is ErrorCode.QUOTA_BUDGET
        assert refused.value.retry_after_s is None  # no day has room for it


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"period": 0}, "period"),
        ({"period": 99}, "period"),
        ({"tenant": "a b", "max_tokens": 1}, "tenant"),
        ({"subject": "a\nb", "max_tokens": 1}, "subject"),
        ({"subject": "a" * 513, "max_tokens": 1}, "subject"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 10**15 + 1}, "max_tokens"),
        ({"max_cost_usd": -0.5}, "max_cost_usd is -0.5"),
        ({"max_cost_usd": float("nan")}, "max_cost_usd is nan"),
        ({"max_cost_usd": float("inf")}, "max_cost_usd is inf"),
    ],
)
async def test_impossible_budgets_are_refused(tmp_path, fields, words):
    async with orchestrator(tmp_path) as stub:
        with pytest.raises(InvalidRequest, match=words):
            await set_budget(stub, **fields)


async def test_an_operator_lists_budgets(tmp_path):
    async with orchestrator(tmp_path) as stub:
        for tenant in ("b", "a"):
            await set_budget(stub, tenant=tenant, max_tokens=5, max_cost_usd=1.5)
        listed = (await call(stub, "ListBudgets")).budgets
        assert [(one.tenant, one.max_tokens, one.max_cost_usd) for one in listed] == [("a", 5, 1.5), ("b", 5, 1.5)]
        for size in (-1, 501):
            with pytest.raises(InvalidRequest, match="page_size"):
                await call(stub, "ListBudgets", page_size=size)


async def test_a_vote_that_is_stopped_counts_what_its_replicas_may_have_used(tmp_path):
    output = contract_pb2.OutputContract(schema_json="{}")
    voting = execution_pb2.Voting(n=3, early_stop=True)
    services = scripted_services(inference=ScriptedInference(*[answer("1")] * 3))
    async with orchestrator(tmp_path, services) as stub:
        await set_budget(stub, max_tokens=1_000_000)
        work = system_request(mode=execution_pb2.MODE_REDUNDANT, voting=voting, output=output)
        assert (await execute(stub, work)).content
        assert (await settled(stub)).granted_tokens >= USAGE.prompt_tokens + 3 * USAGE.output_tokens


async def test_the_highest_prices_are_reserved_for_a_model_that_the_request_does_not_name(tmp_path):
    prices = {"dear": Prices(1000.0, 1000.0, 2000.0), "cheap": Prices(1.0, 1.0, 1.0)}
    async with orchestrator(tmp_path, scripted_services(), prices=prices) as stub:
        await set_budget(stub, max_cost_usd=0.5)
        response = await execute(stub, system_request())
        assert response.error.code == error_pb2.ERROR_CODE_QUOTA_BUDGET


async def test_a_caller_that_leaves_takes_nothing_along(tmp_path):
    async with orchestrator(tmp_path, scripted_services()) as stub:
        await set_budget(stub, max_tokens=100_000)
        for _ in range(20):
            running = asyncio.create_task(execute(stub, system_request()))
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        for _ in range(200):
            if not stub.executions.registry.count:
                break
            await asyncio.sleep(0.01)
        assert (await settled(stub)).granted_tokens <= 20 * TOKENS


async def test_one_tenants_failure_keeps_no_other_from_giving_back(tmp_path):
    class Failing:
        def __init__(self, store):
            self._store = store

        def __getattr__(self, name):
            return getattr(self._store, name)

        async def give_back(self, account, amount, budget):
            if account.tenant == "a":
                raise RuntimeError("the driver says something")
            await self._store.give_back(account, amount, budget)

    async with orchestrator(tmp_path) as stub:
        budgets = Budgets(Failing(stub.journal), SystemClock())
        for tenant in ("a", "b"):
            await set_budget(stub, tenant=tenant, max_tokens=1000)
            async with budgets.spending(Account(tenant), lambda: Amount(10)) as spending:
                spending.used = Amount(4)
        await budgets.stop()
        listed = (await call(stub, "ListBudgets")).budgets
        assert [one.granted_tokens for one in listed] == [10 * GRANT_FACTOR, 4]


async def test_a_debt_is_paid_before_anything_is_spent(tmp_path):
    async with orchestrator(tmp_path) as stub:
        budgets = Budgets(stub.journal, SystemClock())
        await set_budget(stub, max_tokens=1000)
        async with budgets.spending(DEFAULT_ACCOUNT, lambda: Amount(10)) as spending:
            spending.used = Amount(900)
        with pytest.raises(Overloaded):
            async with budgets.spending(DEFAULT_ACCOUNT, lambda: Amount(101)):
                pass
        async with budgets.spending(DEFAULT_ACCOUNT, lambda: Amount(100)) as spending:
            spending.used = Amount(100)
        with pytest.raises(Overloaded):
            async with budgets.spending(DEFAULT_ACCOUNT, lambda: Amount(1)):
                pass
        await budgets.stop()
        assert (await call(stub, "GetBudget")).budget.granted_tokens == 1000


async def test_work_is_paid_of_its_callers_budget_and_its_tenants(tmp_path):
    subject = Account("acme", "ci")
    async with orchestrator(tmp_path) as stub:
        budgets = Budgets(stub.journal, SystemClock())
        await set_budget(stub, tenant="acme", max_tokens=1000)
        await set_budget(stub, tenant="acme", subject="ci", max_tokens=100)
        async with budgets.spending(subject, lambda: Amount(60)) as spending:
            spending.used = Amount(40)
        with pytest.raises(Overloaded, match="subject 'ci' of tenant 'acme'"):
            async with budgets.spending(subject, lambda: Amount(70)):
                pass
        async with budgets.spending(Account("acme", "web"), lambda: Amount(910)) as spending:
            spending.used = Amount(910)
        with pytest.raises(Overloaded, match="budget of tenant 'acme'"):
            async with budgets.spending(subject, lambda: Amount(60)):
                pass
        await budgets.stop()
        listed = (await call(stub, "ListBudgets")).budgets
        assert [(one.subject, one.granted_tokens) for one in listed] == [("", 950), ("ci", 40)]


@pytest.mark.parametrize(("tokens", "is_told_when"), [(100, False), (2000, True)])
async def test_an_inference_that_no_period_can_pay_for_is_not_told_to_wait(tmp_path, tokens, is_told_when):
    async with orchestrator(tmp_path) as stub:
        budgets = Budgets(stub.journal, SystemClock())
        await set_budget(stub, period=budget_pb2.BUDGET_PERIOD_HOUR, max_tokens=2000)
        async with budgets.spending(DEFAULT_ACCOUNT, lambda: Amount(tokens)) as spending:
            spending.used = Amount(tokens)
        await budgets.stop()
        with pytest.raises(Overloaded) as refused:
            async with budgets.spending(DEFAULT_ACCOUNT, lambda: Amount(2001 if tokens == 100 else 1)):
                pass
        assert (refused.value.retry_after_s is not None) is is_told_when
