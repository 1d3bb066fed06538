"""The usage ledger in the journal."""

from __future__ import annotations

from sqlalchemy import Connection, Select, and_, or_, select

from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import wrong_token
from services.orchestrator.adapters.journal.schema import usage_totals
from services.orchestrator.ports.journal import Page, UsageLedger, UsageTotal


class SqlUsage(JournalAccess, UsageLedger):
    """Totals by session and model. A page token is both of the last total, and no session id has a slash."""

    async def add_usage(self, used: UsageTotal) -> None:
        await self._commit(lambda db: self._writes.add_usage(db, [used]))

    async def usage_totals(
        self, *, tenant: str, session_id: str | None, model: str | None, limit: int, after: str
    ) -> Page[UsageTotal]:
        table = usage_totals.c
        found = select(usage_totals).where(table.tenant == tenant).order_by(table.session_id, table.model)
        if session_id is not None:
            found = found.where(table.session_id == session_id)
        if model is not None:
            found = found.where(table.model == model)
        if after:
            last_session, separator, last_model = after.partition("/")
            if not separator or "\0" in after:
                raise wrong_token(after)
            is_later = and_(table.session_id == last_session, table.model > last_model)
            found = found.where(or_(table.session_id > last_session, is_later))
        return await self._read(tenant, lambda db: _page(db, found, limit))


def _page(db: Connection, found: Select[tuple[object, ...]], limit: int) -> Page[UsageTotal]:
    totals = [UsageTotal(**row) for row in db.execute(found.limit(limit + 1)).mappings()]
    if len(totals) <= limit:
        return Page(totals)
    last = totals[limit - 1]
    return Page(totals[:limit], f"{last.session_id}/{last.model}")
