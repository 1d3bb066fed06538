"""The budgets of tenants: sets them, and spends them before and after each inference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pagantic_common.domain.calls.principal import DEFAULT_TENANT
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, Overloaded, PaganticError
from pagantic_common.domain.ids import require_id
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import make_histogram
from pagantic_common.telemetry.names import ORCHESTRATOR_BUDGET_CHECK_DURATION
from services.orchestrator.app.paging import page_limit
from services.orchestrator.core.budget import MICRO, NOTHING, Amount, Budget, Period, Purse
from services.orchestrator.ports.budgets import BudgetStore, Grant
from services.orchestrator.ports.journal import Page

LOOK_S = 2.0  # how long a tenant is known to have no budget, and a purse is kept that nobody uses
BUSY_RETRY_S = 1.0
MAX_TOKENS = 10**15
MAX_MICRO_USD = 10**15

log = get_logger(__name__)
check_duration = make_histogram(
    ORCHESTRATOR_BUDGET_CHECK_DURATION,
    "how long reservations of budgets took",
    unit="s",
    bounds=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1),
)


@dataclass(slots=True)
class Spending:
    """What one inference has used so far."""

    used: Amount = NOTHING


@dataclass(slots=True)
class _Account:
    """What this orchestrator knows of a tenant's budget, and holds of it."""

    purse: Purse | None = None
    limits: tuple[Period, int | None, int | None] | None = None
    free_until_s: float = 0.0  # until then the tenant is known to have no budget
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Budgets:
    """The budgets of every tenant in one orchestrator. Used from one event loop."""

    def __init__(self, store: BudgetStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._tidying: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[bool]] = set()

    def start(self) -> None:
        """Give unused grants back from now on."""
        self._tidying = asyncio.create_task(self._tidy())

    async def stop(self) -> None:
        """Give back what no inference has reserved."""
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait([self._tidying])
        if self._asking:
            await asyncio.wait(self._asking)
        for tenant, account in list(self._accounts.items()):
            with self._reporting(tenant):
                await self._give_back(tenant, account)

    async def set(self, tenant: str, period: Period, max_tokens: int | None, max_cost_usd: float | None) -> Budget:
        """Set a tenant's limits, None for none; without limits the budget is deleted. Raises InvalidRequest."""
        require_id("tenant", tenant or DEFAULT_TENANT)
        max_micro_usd = None
        if max_cost_usd is not None:
            if not 0 <= max_cost_usd <= MAX_MICRO_USD / MICRO:
                raise InvalidRequest(f"max_cost_usd is {max_cost_usd}: it must be from 0 to {MAX_MICRO_USD // MICRO}")
            max_micro_usd = round(max_cost_usd * MICRO)
        if max_tokens is not None and not 0 <= max_tokens <= MAX_TOKENS:
            raise InvalidRequest(f"max_tokens is {max_tokens}: it must be from 0 to {MAX_TOKENS}")
        start = period.start_of(self._clock.now()).timestamp()
        budget = Budget(tenant or DEFAULT_TENANT, period, max_tokens, max_micro_usd, start, made_at=self._now_s)
        kept = await self._store.set_budget(budget)
        log.info("a budget was set", tenant=kept.tenant, period=period, tokens=max_tokens, cost_usd=max_cost_usd)
        return kept

    async def find(self, tenant: str) -> Budget:
        """Return a tenant's budget; raises NotFound for none."""
        budget = await self._store.find_budget(tenant, self._now_s)
        if budget is None:
            raise NotFound("the tenant has no budget")
        return budget

    async def list_budgets(self, page_size: int, page_token: str) -> Page[Budget]:
        """Return the budgets of all tenants. Raises InvalidRequest."""
        return await self._store.list_budgets(limit=page_limit(page_size), after=page_token, now_s=self._now_s)

    @asynccontextmanager
    async def spending(self, tenant: str, bound: Callable[[], Amount]) -> AsyncIterator[Spending]:
        """Reserve the bound of a tenant's budget, if it has one; afterwards settle what the work inside has used.

        Raises Overloaded (QUOTA_BUDGET) when the budget has too little left.
        """
        spending, began_s = Spending(), self._clock.monotonic_s()
        if self._has_none(tenant):  # most tenants: nobody looks at the whole prompt for them
            yield spending
            return
        amount = bound()
        purse = await self._reserve(tenant, amount)
        if purse is not None:
            check_duration.record(self._clock.monotonic_s() - began_s)
        try:
            yield spending
        finally:
            if purse is not None:
                purse.settle(amount, spending.used)

    @property
    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    def _has_none(self, tenant: str) -> bool:
        """Tell whether a tenant is known to have no budget."""
        account = self._accounts.get(tenant)
        return account is not None and self._clock.monotonic_s() < account.free_until_s

    async def _reserve(self, tenant: str, amount: Amount) -> Purse | None:
        """Return the purse that an amount was reserved in; None for a tenant without a budget."""
        account = self._accounts.setdefault(tenant, _Account())
        while not self._has_none(tenant):
            purse = self._current_purse(account)
            if purse is not None and purse.reserve(amount):
                if purse.is_low and not account.asking.locked():
                    purse.go_without()
                    self._begin(self._top_up(tenant, account, amount))
                return purse
            # A caller that leaves meanwhile does not take along what is granted.
            if not await asyncio.shield(self._begin(self._fill(tenant, account, amount))):
                return None
        return None

    def _begin(self, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        task = asyncio.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[bool]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it may have gone

    async def _fill(self, tenant: str, account: _Account, amount: Amount) -> bool:
        """Make the purse cover an amount, unless it does by now; False for a tenant without a budget.

        Raises Overloaded (QUOTA_BUDGET) when the budget has too little left.
        """
        async with account.asking:
            purse = self._current_purse(account)
            missing = amount
            if purse is not None:
                missing = purse.missing(amount)
            if missing == NOTHING:
                return True
            grant: Grant | None = None
            if await self._store.find_budget(tenant, self._now_s) is not None:  # most tenants have none
                grant = await self._store.grant(tenant, missing, self._now_s)
            if grant is None:
                account.purse = account.limits = None
                account.free_until_s = self._clock.monotonic_s() + LOOK_S
                return False
            if grant.granted is None:
                raise self._refusal(grant.budget, account, amount)
            _put(account, grant.budget, grant.granted)
            return True

    async def _top_up(self, tenant: str, account: _Account, amount: Amount) -> bool:
        """Ask for more before the purse is empty; whoever finds it empty is told of what goes wrong here."""
        async with account.asking:
            try:
                grant = await self._store.grant(tenant, amount, self._now_s)
            except PaganticError as error:
                log.warning("a budget cannot be asked for more yet", tenant=tenant, reason=str(error))
                return False
            if grant is None or grant.granted is None:
                return False
            _put(account, grant.budget, grant.granted)
            return True

    def _current_purse(self, account: _Account) -> Purse | None:
        """Return the purse of an account, if it is of this period."""
        if account.purse is None or account.limits is None:
            return None
        _, period_start = account.purse.budget
        if account.limits[0].start_of(self._clock.now()).timestamp() > period_start:
            return None
        return account.purse

    def _refusal(self, budget: Budget, account: _Account, amount: Amount) -> Overloaded:
        """Return the refusal of an amount; it may be asked for again once running inferences are settled."""
        now, end = self._clock.now(), budget.period.end_of(self._clock.now())
        wait_s: float | None = None
        if account.purse is not None and account.purse.reserved != NOTHING:
            wait_s = BUSY_RETRY_S
        elif end is not None:
            wait_s = (end - now).total_seconds()
        return Overloaded(
            f"the budget of tenant {budget.tenant!r} has too little left for this inference, which may use "
            f"{amount.tokens} tokens: ask for fewer with max_tokens, or have the budget raised",
            code=ErrorCode.QUOTA_BUDGET,
            retry_after_s=wait_s,
            details={"needed_tokens": amount.tokens, "left_tokens": max(0, budget.left().tokens)},
        )

    async def _tidy(self) -> None:
        while True:
            await self._clock.sleep(LOOK_S)
            for tenant, account in list(self._accounts.items()):
                with self._reporting(tenant):
                    await self._look_at(tenant, account)

    @contextmanager
    def _reporting(self, tenant: str) -> Iterator[None]:
        """Let one tenant's failure keep nothing from the others."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a driver has many
            log.warning("a budget's purse cannot be looked at", tenant=tenant, reason=str(error))

    async def _look_at(self, tenant: str, account: _Account) -> None:
        """Give back what nobody has used for a while, or what was granted under other limits."""
        purse = account.purse
        if purse is None:
            if self._clock.monotonic_s() >= account.free_until_s and not account.asking.locked():
                del self._accounts[tenant]
            return
        was_used, purse.was_used = purse.was_used, False
        budget = await self._store.find_budget(tenant, self._now_s)
        is_same = budget is not None and budget.identity == purse.budget and _limits_of(budget) == account.limits
        if not was_used or not is_same:
            await self._give_back(tenant, account)

    async def _give_back(self, tenant: str, account: _Account) -> None:
        """Give back what is not reserved. A failure may have given it back too, so it is not spent any more."""
        async with account.asking:
            purse = account.purse
            if purse is None:
                return
            if (free := purse.take_free()) != NOTHING:
                await self._store.give_back(tenant, free, purse.budget)
            if account.purse is purse and (purse.free, purse.reserved) == (NOTHING, NOTHING):
                account.purse = account.limits = None


def _put(account: _Account, budget: Budget, granted: Amount) -> None:
    """Add what was granted to the purse; one of another budget or an earlier period is replaced."""
    if account.purse is None or account.purse.budget != budget.identity:
        account.purse = Purse(budget.identity)
    account.limits = _limits_of(budget)
    account.purse.put(granted)


def _limits_of(budget: Budget) -> tuple[Period, int | None, int | None]:
    return budget.period, budget.max_tokens, budget.max_micro_usd
