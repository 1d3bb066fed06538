"""Computes the usage of a request, which is added to the totals of its caller, session and model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.cost import Prices, cost_usd, prices_for
from services.orchestrator.core.model.keys import Account
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.journal import UsageLedger, UsageTotal


def total_of(request: Request, usage: TokenUsage, model: str, prices: Mapping[str, Prices]) -> UsageTotal | None:
    """Return a request's usage under the alias that served the request, or else under the requested alias.

    Returns None if there is no usage.
    """
    alias = request.hints.model
    cost = cost_usd(usage, prices_for(prices, alias, model))
    return account_total(request.account, usage, model or alias, cost, request.session_id)


async def count_usage(
    journal: UsageLedger, account: Account, usage: TokenUsage, model: str, prices: Prices | None
) -> None:
    """Add to the usage that an account has of a model alias, even if the caller is cancelled meanwhile."""
    used = account_total(account, usage, model, cost_usd(usage, prices))
    if used is not None:
        await asyncio.shield(asyncio.ensure_future(journal.add_usage(used)))


def account_total(
    account: Account, usage: TokenUsage, model: str, cost: float | None, session_id: str = ""
) -> UsageTotal | None:
    """Return an account's usage of a model alias for one request, or None if there is no usage."""
    if not usage.prompt_tokens:  # otherwise, made-up model names would fill the table
        return None
    return UsageTotal(
        tenant=account.tenant,
        subject=account.subject,
        session_id=session_id,
        model=model or "default",
        requests=1,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=cost or 0.0,
    )
