"""Stores budgets in the journal's database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, select, tuple_, update

from pagantic_common.domain.clock import Clock
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.database import EVERY_TENANT, translating_errors
from services.orchestrator.adapters.journal.rows import read_token, token_of
from services.orchestrator.adapters.journal.schema import budgets
from services.orchestrator.core.admission.budget import Amount, Budget, Period
from services.orchestrator.core.model.keys import Account
from services.orchestrator.ports.budgets import BudgetStore, Grant
from services.orchestrator.ports.page import Page

ResultT = TypeVar("ResultT")


_ORDER = (budgets.c.tenant, budgets.c.subject)


class SqlBudgets(JournalAccess, BudgetStore):
    """Budgets by account. A page token contains the tenant and subject of the last account.

    Each change runs in a separate transaction on a separate thread. A group of changes that locks several tenants' rows
    could block another orchestrator's group, and with it all executions there.
    """

    def __init__(self, url: str, owner: str, clock: Clock) -> None:
        super().__init__(url, owner, clock)
        self._spending = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-budgets")

    async def set_budget(self, budget: Budget) -> Budget:
        return await self._change(lambda db: self._set(db, budget))

    async def find_budget(self, account: Account, now_s: float) -> Budget | None:
        query = select(budgets).where(_of(account))
        loop, read = asyncio.get_running_loop(), partial(_budgets, found=query, now_s=now_s)
        return next(iter(await loop.run_in_executor(self._spending, self._read_now, read)), None)

    async def has_subject_budgets(self, tenant: str) -> bool:
        query = select(budgets.c.tenant).where(budgets.c.tenant == tenant, budgets.c.subject != "").limit(1)
        loop, read = asyncio.get_running_loop(), partial(_has_rows, found=query)
        return await loop.run_in_executor(self._spending, self._read_now, read)

    async def list_budgets(self, *, limit: int, after: str, now_s: float) -> Page[Budget]:
        query = select(budgets).order_by(*_ORDER).limit(limit + 1)
        if after:
            query = query.where(tuple_(*_ORDER) > tuple_(*read_token(after, len(_ORDER))))
        listed = await self._read(EVERY_TENANT, lambda db: _budgets(db, query, now_s))
        if len(listed) <= limit:
            return Page(listed)
        return Page(listed[:limit], token_of(*listed[limit - 1].account))

    async def grant(self, account: Account, least: Amount, now_s: float) -> Grant | None:
        return await self._change(lambda db: _grant(db, account, least, now_s))

    async def give_back(self, account: Account, amount: Amount, budget: tuple[float, float]) -> None:
        table, (made_at, period_start) = budgets.c, budget
        change = update(budgets).where(_of(account), table.made_at == made_at, table.period_start == period_start)
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
            db.execute(delete(budgets).where(_of(budget.account)))
            return budget
        before = _locked(db, budget.account, budget.period_start)
        if before is not None and before.period is budget.period:
            budget = replace(before, max_tokens=budget.max_tokens, max_micro_usd=budget.max_micro_usd)
        row = _row_of(budget)
        db.execute(self._insert(budgets).values(row).on_conflict_do_update(index_elements=_ORDER, set_=row))
        return budget


def _of(account: Account) -> ColumnElement[bool]:
    return and_(budgets.c.tenant == account.tenant, budgets.c.subject == account.subject)


def _grant(db: Connection, account: Account, least: Amount, now_s: float) -> Grant | None:
    budget = _locked(db, account, now_s)
    if budget is None:
        return None
    granted = budget.grant(least)
    if granted is not None:
        budget = replace(budget, granted=budget.granted + granted)
        db.execute(update(budgets).where(_of(account)).values(_row_of(budget)))
    return Grant(budget, granted)


def _locked(db: Connection, account: Account, now_s: float) -> Budget | None:
    """Return a budget, and lock its row until the transaction ends."""
    query = select(budgets).where(_of(account)).with_for_update()
    return next(iter(_budgets(db, query, now_s)), None)


def _has_rows(db: Connection, found: Select[tuple[Any, ...]]) -> bool:
    return db.execute(found).first() is not None


def _budgets(db: Connection, found: Select[tuple[Any, ...]], now_s: float) -> list[Budget]:
    return [_budget_of(row, now_s) for row in db.execute(found)]


def _budget_of(row: Any, now_s: float) -> Budget:
    """Return the budget in a row, with a granted amount of 0 if the row's period has ended."""
    period, granted = Period(row.period), Amount(row.granted_tokens, row.granted_micro_usd)
    start = max(row.period_start, period.start_of(datetime.fromtimestamp(now_s, UTC)).timestamp())
    if start > row.period_start:
        granted = Amount()
    return Budget(
        Account(row.tenant, row.subject), period, row.max_tokens, row.max_micro_usd, start, granted, row.made_at
    )


def _row_of(budget: Budget) -> dict[str, Any]:
    return {
        "tenant": budget.account.tenant,
        "subject": budget.account.subject,
        "period": budget.period.value,
        "max_tokens": budget.max_tokens,
        "max_micro_usd": budget.max_micro_usd,
        "period_start": budget.period_start,
        "granted_tokens": budget.granted.tokens,
        "granted_micro_usd": budget.granted.micro_usd,
        "made_at": budget.made_at,
    }
