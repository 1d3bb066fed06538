"""Budgets in the journal's database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, delete, select, update

from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.database import EVERY_TENANT, translating_errors
from services.orchestrator.adapters.journal.rows import wrong_token
from services.orchestrator.adapters.journal.schema import budgets
from services.orchestrator.core.budget import Amount, Budget, Period
from services.orchestrator.ports.budgets import BudgetStore, Grant
from services.orchestrator.ports.journal import Page

ResultT = TypeVar("ResultT")


class SqlBudgets(JournalAccess, BudgetStore):
    """Budgets by tenant. A page token is the last tenant.

    Each change is a transaction of its own, on a thread of its own: a group of changes that locks several tenants' rows
    could block the group of another orchestrator, and with it all its executions.
    """

    def __init__(self, url: str, owner: str) -> None:
        super().__init__(url, owner)
        self._spending = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-budgets")

    async def set_budget(self, budget: Budget) -> Budget:
        return await self._change(lambda db: self._set(db, budget))

    async def find_budget(self, tenant: str, now_s: float) -> Budget | None:
        found = select(budgets).where(budgets.c.tenant == tenant)
        loop, read = asyncio.get_running_loop(), partial(_budgets, found=found, now_s=now_s)
        return next(iter(await loop.run_in_executor(self._spending, self._read_now, read)), None)

    async def list_budgets(self, *, limit: int, after: str, now_s: float) -> Page[Budget]:
        if "\0" in after:
            raise wrong_token(after)
        found = select(budgets).where(budgets.c.tenant > after).order_by(budgets.c.tenant).limit(limit + 1)
        listed = await self._read(EVERY_TENANT, lambda db: _budgets(db, found, now_s))
        if len(listed) <= limit:
            return Page(listed)
        return Page(listed[:limit], listed[limit - 1].tenant)

    async def grant(self, tenant: str, least: Amount, now_s: float) -> Grant | None:
        return await self._change(lambda db: _grant(db, tenant, least, now_s))

    async def give_back(self, tenant: str, amount: Amount, budget: tuple[float, float]) -> None:
        table, (made_at, period_start) = budgets.c, budget
        change = update(budgets).where(
            table.tenant == tenant, table.made_at == made_at, table.period_start == period_start
        )
        change = change.values(
            granted_tokens=table.granted_tokens - amount.tokens,
            granted_micro_usd=table.granted_micro_usd - amount.micro_usd,
        )
        await self._change(lambda db: db.execute(change))

    async def _change(self, work: Callable[[Connection], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._spending, self._change_now, work)

    def _change_now(self, work: Callable[[Connection], ResultT]) -> ResultT:
        with translating_errors(), self._engine.begin() as db:
            return work(db)

    def _set(self, db: Connection, budget: Budget) -> Budget:
        if budget.max_tokens is None and budget.max_micro_usd is None:
            db.execute(delete(budgets).where(budgets.c.tenant == budget.tenant))
            return budget
        before = _locked(db, budget.tenant, budget.period_start)
        if before is not None and before.period is budget.period:
            budget = replace(before, max_tokens=budget.max_tokens, max_micro_usd=budget.max_micro_usd)
        row = _row_of(budget)
        db.execute(self._insert(budgets).values(row).on_conflict_do_update(index_elements=["tenant"], set_=row))
        return budget


def _grant(db: Connection, tenant: str, least: Amount, now_s: float) -> Grant | None:
    budget = _locked(db, tenant, now_s)
    if budget is None:
        return None
    granted = budget.grant(least)
    if granted is not None:
        budget = replace(budget, granted=budget.granted + granted)
        db.execute(update(budgets).where(budgets.c.tenant == tenant).values(_row_of(budget)))
    return Grant(budget, granted)


def _locked(db: Connection, tenant: str, now_s: float) -> Budget | None:
    """Return a budget whose row no other transaction changes before this one ends."""
    found = select(budgets).where(budgets.c.tenant == tenant).with_for_update()
    return next(iter(_budgets(db, found, now_s)), None)


def _budgets(db: Connection, found: Select[tuple[Any, ...]], now_s: float) -> list[Budget]:
    return [_budget_of(row, now_s) for row in db.execute(found)]


def _budget_of(row: Any, now_s: float) -> Budget:
    """Return a row's budget, started again if its period has ended."""
    period, granted = Period(row.period), Amount(row.granted_tokens, row.granted_micro_usd)
    start = max(row.period_start, period.start_of(datetime.fromtimestamp(now_s, UTC)).timestamp())
    if start > row.period_start:
        granted = Amount()
    return Budget(row.tenant, period, row.max_tokens, row.max_micro_usd, start, granted, row.made_at)


def _row_of(budget: Budget) -> dict[str, Any]:
    return {
        "tenant": budget.tenant,
        "period": budget.period.value,
        "max_tokens": budget.max_tokens,
        "max_micro_usd": budget.max_micro_usd,
        "period_start": budget.period_start,
        "granted_tokens": budget.granted.tokens,
        "granted_micro_usd": budget.granted.micro_usd,
        "made_at": budget.made_at,
    }
