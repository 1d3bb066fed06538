"""The budgets of tenants and their callers: sets budgets, reserves amounts before each inference, and settles them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pagantic_common.domain.calls.principal import MAX_SUBJECT
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, Overloaded, PaganticError
from pagantic_common.domain.ids import require_id, require_printable
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import make_histogram
from pagantic_common.telemetry.names import ORCHESTRATOR_BUDGET_CHECK_DURATION
from services.orchestrator.core.admission.budget import MICRO, NOTHING, Amount, Budget, Period, Purse
from services.orchestrator.core.model.keys import Account
from services.orchestrator.ports.budgets import BudgetStore, Grant
from services.orchestrator.ports.page import Page, page_limit

LOOK_S = 2.0  # maximum time that an absent budget is cached, or an unused purse is kept
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
    """The amount that one call has used so far. It counts only if a budget limits the call."""

    is_limited: bool = False
    used: Amount = NOTHING


@dataclass(slots=True)
class _Holding:
    """An account's budget as known to this orchestrator, and the purse with the orchestrator's grant."""

    purse: Purse | None = None
    limits: tuple[Period, int | None, int | None] | None = None
    free_until_s: float = 0.0  # until this time, the account is known to have no budget
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Budgets:
    """The budgets of all accounts in one orchestrator. Not thread-safe: use it from a single event loop."""

    def __init__(self, store: BudgetStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._holdings: dict[Account, _Holding] = {}
        # The time by tenant until which its subjects are known to have no budgets.
        self._no_subjects_until_s: dict[str, float] = {}
        self._tidying: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[bool]] = set()

    def start(self) -> None:
        """Start the background task that gives back unused grants."""
        self._tidying = asyncio.create_task(self._tidy())

    async def stop(self) -> None:
        """Stop the background task, and give back all unreserved amounts."""
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait([self._tidying])
        if self._asking:
            await asyncio.wait(self._asking)
        for account, holding in list(self._holdings.items()):
            with self._reporting(account):
                await self._give_back(account, holding)

    async def set(self, account: Account, period: Period, max_tokens: int | None, max_cost_usd: float | None) -> Budget:
        """Set an account's limits, where None means unlimited. Deletes a budget without limits.

        Raises InvalidRequest if an argument is invalid.
        """
        require_id("tenant", account.tenant)
        require_printable("subject", account.subject, MAX_SUBJECT)
        max_micro_usd = None
        if max_cost_usd is not None:
            if not 0 <= max_cost_usd <= MAX_MICRO_USD / MICRO:
                raise InvalidRequest(f"max_cost_usd is {max_cost_usd}: it must be from 0 to {MAX_MICRO_USD // MICRO}")
            max_micro_usd = round(max_cost_usd * MICRO)
        if max_tokens is not None and not 0 <= max_tokens <= MAX_TOKENS:
            raise InvalidRequest(f"max_tokens is {max_tokens}: it must be from 0 to {MAX_TOKENS}")
        start = period.start_of(self._clock.now()).timestamp()
        budget = Budget(account, period, max_tokens, max_micro_usd, start, made_at=self._now_s)
        kept = await self._store.set_budget(budget)
        log.info("a budget was set", **account._asdict(), period=period, tokens=max_tokens, cost_usd=max_cost_usd)
        return kept

    async def find(self, account: Account) -> Sequence[Budget]:
        """Return the budgets to which an account's work is charged. Raises NotFound if there is no budget."""
        payer_budgets = [await self._store.find_budget(payer, self._now_s) for payer in account.payers]
        budgets = [budget for budget in payer_budgets if budget is not None]
        if not budgets:
            raise NotFound(f"{account} has no budget")
        return budgets

    async def list_budgets(self, page_size: int, page_token: str) -> Page[Budget]:
        """Return a page of all budgets. Raises InvalidRequest if the page size or page token is invalid."""
        return await self._store.list_budgets(limit=page_limit(page_size), after=page_token, now_s=self._now_s)

    @asynccontextmanager
    async def spending(self, account: Account, bound: Callable[[], Amount]) -> AsyncIterator[Spending]:
        """Reserve an amount in each budget of an account, and settle the actual usage on exit.

        `bound` returns the amount to reserve. Raises Overloaded (QUOTA_BUDGET) if a budget is too low.
        """
        spending, began_s = Spending(), self._clock.monotonic_s()
        payers = [payer for payer in account.payers if not self._has_none(payer)]
        if not payers:  # True for most accounts; saves counting the whole prompt.
            yield spending
            return
        amount = bound()
        with ExitStack() as reserved:
            for payer in payers:
                purse = await self._reserve(payer, amount)
                if purse is not None:
                    reserved.callback(_settle, purse, amount, spending)
                    spending.is_limited = True
            if spending.is_limited:
                check_duration.record(self._clock.monotonic_s() - began_s)
            yield spending

    @property
    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    def _has_none(self, account: Account) -> bool:
        """Return whether an account is known to have no budget."""
        holding = self._holdings.get(account)
        return holding is not None and self._clock.monotonic_s() < holding.free_until_s

    async def _reserve(self, account: Account, amount: Amount) -> Purse | None:
        """Return the purse in which an amount was reserved, or None if the account has no budget."""
        while not self._has_none(account):
            holding = self._holdings.setdefault(account, _Holding())
            purse = self._current_purse(holding)
            if purse is not None and purse.reserve(amount):
                if purse.is_low and not holding.asking.locked():
                    purse.go_without()
                    self._begin(self._top_up(account, holding, amount))
                return purse
            # Shielded, because a cancelled caller must not lose the grant.
            if not await asyncio.shield(self._begin(self._fill(account, amount))):
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
            task.exception()  # The waiting caller may have been cancelled.

    async def _fill(self, account: Account, amount: Amount) -> bool:
        """Fill the purse to cover an amount, unless it already does. Returns False if the account has no budget.

        Raises Overloaded (QUOTA_BUDGET) if the budget is too low.
        """
        holding = self._holdings.setdefault(account, _Holding())
        async with holding.asking:
            purse = self._current_purse(holding)
            missing = amount
            if purse is not None:
                missing = purse.missing(amount)
            if missing == NOTHING:
                return True
            grant: Grant | None = None
            if await self._may_have_one(account):
                grant = await self._store.grant(account, missing, self._now_s)
            if grant is None:
                holding.purse = holding.limits = None
                holding.free_until_s = self._clock.monotonic_s() + LOOK_S
                return False
            if grant.granted is None:
                raise self._refusal(grant.budget, holding, amount)
            _put(holding, grant.budget, grant.granted)
            return True

    async def _may_have_one(self, account: Account) -> bool:
        """Return whether an account has a budget. One query suffices for a tenant without subject budgets."""
        if account.subject:
            now_s = self._clock.monotonic_s()
            if now_s < self._no_subjects_until_s.get(account.tenant, 0.0):
                return False
            if not await self._store.has_subject_budgets(account.tenant):
                self._no_subjects_until_s[account.tenant] = now_s + LOOK_S
                return False
        return await self._store.find_budget(account, self._now_s) is not None

    async def _top_up(self, account: Account, holding: _Holding, amount: Amount) -> bool:
        """Request a grant before the purse is empty. After an error, which is only logged, a later caller retries."""
        async with holding.asking:
            try:
                grant = await self._store.grant(account, amount, self._now_s)
            except PaganticError as error:
                log.warning("a budget cannot be asked for more yet", **account._asdict(), reason=str(error))
                return False
            if grant is None or grant.granted is None:
                return False
            _put(holding, grant.budget, grant.granted)
            return True

    def _current_purse(self, holding: _Holding) -> Purse | None:
        """Return the account's purse, or None if it has no purse for the current period."""
        if holding.purse is None or holding.limits is None:
            return None
        _, period_start = holding.purse.budget
        if holding.limits[0].start_of(self._clock.now()).timestamp() > period_start:
            return None
        return holding.purse

    def _refusal(self, budget: Budget, holding: _Holding, amount: Amount) -> Overloaded:
        """Return the error that rejects an amount. A retry may succeed once running inferences are settled."""
        now, end = self._clock.now(), budget.period.end_of(self._clock.now())
        wait_s: float | None = None
        if holding.purse is not None and holding.purse.reserved != NOTHING:
            wait_s = BUSY_RETRY_S
        elif end is not None and replace(budget, granted=NOTHING).left().covers(amount):
            wait_s = (end - now).total_seconds()
        return Overloaded(
            f"the budget of {budget.account} has too little left for this inference, which may use "
            f"{amount.tokens} tokens: ask for fewer with max_tokens, or have the budget raised",
            code=ErrorCode.QUOTA_BUDGET,
            retry_after_s=wait_s,
            details={"needed_tokens": amount.tokens, "left_tokens": max(0, budget.left().tokens)},
        )

    async def _tidy(self) -> None:
        while True:
            await self._clock.sleep(LOOK_S)
            now_s = self._clock.monotonic_s()
            self._no_subjects_until_s = {
                key: end_s for key, end_s in self._no_subjects_until_s.items() if end_s > now_s
            }
            for account, holding in list(self._holdings.items()):
                with self._reporting(account):
                    await self._look_at(account, holding)

    @contextmanager
    def _reporting(self, account: Account) -> Iterator[None]:
        """Log an error of one account, so that the other accounts are still processed."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a driver may raise any error
            log.warning("a budget's purse cannot be looked at", **account._asdict(), reason=str(error))

    async def _look_at(self, account: Account, holding: _Holding) -> None:
        """Give back an amount that has been unused for a while, or was granted under other limits."""
        purse = holding.purse
        if purse is None:
            if self._clock.monotonic_s() >= holding.free_until_s and not holding.asking.locked():
                del self._holdings[account]
            return
        was_used, purse.was_used = purse.was_used, False
        budget = await self._store.find_budget(account, self._now_s)
        is_same = budget is not None and budget.identity == purse.budget and _limits_of(budget) == holding.limits
        if not was_used or not is_same:
            await self._give_back(account, holding)

    async def _give_back(self, account: Account, holding: _Holding) -> None:
        """Give back the unreserved amount. After an error it stays unspent, as the store may have taken it back."""
        async with holding.asking:
            purse = holding.purse
            if purse is None:
                return
            if (free := purse.take_free()) != NOTHING:
                await self._store.give_back(account, free, purse.budget)
            if holding.purse is purse and (purse.free, purse.reserved) == (NOTHING, NOTHING):
                holding.purse = holding.limits = None


def _settle(purse: Purse, amount: Amount, spending: Spending) -> None:
    purse.settle(amount, spending.used)


def _put(holding: _Holding, budget: Budget, granted: Amount) -> None:
    """Add a granted amount to the purse, after replacing a purse of another budget or an earlier period."""
    if holding.purse is None or holding.purse.budget != budget.identity:
        holding.purse = Purse(budget.identity)
    holding.limits = _limits_of(budget)
    holding.purse.put(granted)


def _limits_of(budget: Budget) -> tuple[Period, int | None, int | None]:
    return budget.period, budget.max_tokens, budget.max_micro_usd
