"""Stores usage totals in the journal's database."""

from __future__ import annotations

from sqlalchemy import Connection, Select, select, tuple_

from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import read_token, token_of
from services.orchestrator.adapters.journal.schema import usage_totals
from services.orchestrator.ports.journal import UsageLedger, UsageTotal
from services.orchestrator.ports.page import Page

_ORDER = (usage_totals.c.session_id, usage_totals.c.model, usage_totals.c.subject)


class SqlUsage(JournalAccess, UsageLedger):
    """Totals by session, model and subject. A page token is a JSON array of these three names in the last total."""

    async def add_usage(self, used: UsageTotal) -> None:
        await self._commit(lambda db: self._writes.add_usage(db, [used]))

    async def usage_totals(
        self,
        *,
        tenant: str,
        limit: int,
        after: str,
        session_id: str | None = None,
        model: str | None = None,
        subject: str | None = None,
    ) -> Page[UsageTotal]:
        query = select(usage_totals).where(usage_totals.c.tenant == tenant).order_by(*_ORDER)
        for column, value in zip(_ORDER, (session_id, model, subject), strict=True):
            if value is not None:
                query = query.where(column == value)
        if after:
            query = query.where(tuple_(*_ORDER) > tuple_(*read_token(after, len(_ORDER))))
        return await self._read(tenant, lambda db: _page(db, query, limit))


def _page(db: Connection, found: Select[tuple[object, ...]], limit: int) -> Page[UsageTotal]:
    totals = [UsageTotal(**row) for row in db.execute(found.limit(limit + 1)).mappings()]
    if len(totals) <= limit:
        return Page(totals)
    last = totals[limit - 1]
    return Page(totals[:limit], token_of(last.session_id, last.model, last.subject))
