"""What a request adds to the totals of its caller, session and model."""

from __future__ import annotations

from collections.abc import Mapping

from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.cost import Prices, cost_usd, prices_for
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.journal import UsageTotal


def total_of(request: Request, usage: TokenUsage, model: str, prices: Mapping[str, Prices]) -> UsageTotal | None:
    """Return what a request used under the alias that served it, empty where none is known; None for nothing."""
    if not usage.prompt_tokens:  # a made-up model name must not fill the table
        return None
    asked = request.hints.model
    return UsageTotal(
        tenant=request.tenant,
        subject=request.subject,
        session_id=request.session_id,
        model=model or asked or "default",
        requests=1,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=cost_usd(usage, prices_for(prices, asked, model)) or 0.0,
    )
