"""Stores usage totals in the journal's database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, cast, func, select, tuple_

from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.adapters.journal.access import JournalAccess
from services.orchestrator.adapters.journal.rows import read_token, token_of
from services.orchestrator.adapters.journal.schema import usage_totals
from services.orchestrator.ports.journal import UsageKey, UsageLedger, UsageTotal
from services.orchestrator.ports.page import Page

_ORDER = (UsageKey.SESSION, UsageKey.MODEL, UsageKey.SUBJECT)
_COUNTS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens")


class SqlUsage(JournalAccess, UsageLedger):
    """Totals by session, model and subject, and sums over these totals.

    A page token is a JSON array of the names of the keys, and of the values of these keys in the last total.
    """

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
        group_by: Collection[UsageKey] = frozenset(),
    ) -> Page[UsageTotal]:
        keys = [key for key in _ORDER if not group_by or key in group_by]
        columns = [usage_totals.c[key] for key in keys]
        query = _sums_by(keys).where(usage_totals.c.tenant == tenant)
        for key, value in zip(_ORDER, (session_id, model, subject), strict=True):
            if value is not None:
                query = query.where(usage_totals.c[key] == value)
        if after:
            query = query.where(tuple_(*columns) > tuple_(*_read_token(after, keys)))
        return await self._read(tenant, lambda db: _page(db, query, limit, keys, tenant))


def _sums_by(keys: Sequence[UsageKey]) -> Select[Any]:
    """Return the query for the sums. PostgreSQL returns decimals for sums of integers, and NULL for sums of no rows."""
    columns = [usage_totals.c[key] for key in keys]
    counts = [cast(func.coalesce(func.sum(usage_totals.c[name]), 0), BigInteger).label(name) for name in _COUNTS]
    cost = func.coalesce(func.sum(usage_totals.c.cost_usd), 0.0).label("cost_usd")
    return select(*columns, *counts, cost).group_by(*columns).order_by(*columns)


def _page(db: Connection, query: Select[Any], limit: int, keys: Sequence[UsageKey], tenant: str) -> Page[UsageTotal]:
    unnamed = dict.fromkeys(_ORDER, "")
    totals = [UsageTotal(**{**unnamed, **row}, tenant=tenant) for row in db.execute(query.limit(limit + 1)).mappings()]
    if len(totals) <= limit:
        return Page(totals)
    last = totals[limit - 1]
    return Page(totals[:limit], token_of(",".join(keys), *(getattr(last, key) for key in keys)))


def _read_token(token: str, keys: Sequence[UsageKey]) -> list[str]:
    """Return the values in a page token. Raises InvalidRequest if the previous page had other keys."""
    named, *values = read_token(token, None)
    if not keys or named != ",".join(keys) or len(values) != len(keys):
        raise InvalidRequest(
            f"page_token {token[:40]!r} belongs to another group_by: send that one again, or begin without a token"
        )
    return values
