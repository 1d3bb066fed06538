"""Budgets in the journal's database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, delete, select, update

from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import wrong_token
from services.orchestrator.adapters.journal.schema import budgets
from services.orchestrator.core.budget import Amount, Budget, Period
from services.orchestrator.ports.budgets import BudgetStore, Grant
from services.orchestrator.ports.journal import Page


class SqlBudgets(JournalAccess, BudgetStore):
    """Budgets by tenant. A page token is the last tenant.

    A grant locks its row, so that orchestrators that ask at the same time wait for each other.
    """

    async def set_budget(self, budget: Budget) -> Budget:
        kept: Budget = await self._commit(lambda db: self._set(db, budget))
        return kept

    async def find_budget(self, tenant: str, now_s: float) -> Budget | None:
        found = select(budgets).where(budgets.c.tenant == tenant)
        return next(iter(await self._read(lambda db: _budgets(db, found, now_s))), None)

    async def list_budgets(self, *, limit: int, after: str, now_s: float) -> Page[Budget]:
        if "\0" in after:
            raise wrong_token(after)
        found = select(budgets).where(budgets.c.tenant > after).order_by(budgets.c.tenant).limit(limit + 1)
        listed = await self._read(lambda db: _budgets(db, found, now_s))
        if len(listed) <= limit:
            return Page(listed)
        return Page(listed[:limit], listed[limit - 1].tenant)

    async def grant(self, tenant: str, least: Amount, now_s: float) -> Grant | None:
        given: Grant | None = await self._commit(lambda db: _grant(db, tenant, least, now_s))
        return given

    async def give_back(self, tenant: str, amount: Amount, period_start: float) -> None:
        table = budgets.c
        change = update(budgets).where(table.tenant == tenant, table.period_start == period_start)
        change = change.values(
            granted_tokens=table.granted_tokens - amount.tokens,
            granted_micro_usd=table.granted_micro_usd - amount.micro_usd,
        )
        await self._commit(lambda db: db.execute(change))

    def _set(self, db: Connection, budget: Budget) -> Budget:
        if budget.max_tokens is None and budget.max_micro_usd is None:
            db.execute(delete(budgets).where(budgets.c.tenant == budget.tenant))
            return budget
        before = _locked(db, budget.tenant, budget.period_start)
        if before is not None and before.period is budget.period:
            budget = replace(budget, period_start=before.period_start, granted=before.granted)
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
    return Budget(row.tenant, period, row.max_tokens, row.max_micro_usd, start, granted)


def _row_of(budget: Budget) -> dict[str, Any]:
    return {
        "tenant": budget.tenant,
        "period": budget.period.value,
        "max_tokens": budget.max_tokens,
        "max_micro_usd": budget.max_micro_usd,
        "period_start": budget.period_start,
        "granted_tokens": budget.granted.tokens,
        "granted_micro_usd": budget.granted.micro_usd,
    }
