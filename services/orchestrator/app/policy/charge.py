"""Charges the model calls of the current account to its budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.app.budgets import Budgets, Spending
from services.orchestrator.app.services import (
    Call,
    Draw,
    Embed,
    Generate,
    Perform,
    Score,
    ScoreLabels,
    ScorePairs,
    Sink,
    Validate,
)
from services.orchestrator.core.admission.budget import (
    NOTHING,
    Amount,
    amount_of,
    decision_bound,
    judge_bound,
    texts_bound,
    worst_case,
)
from services.orchestrator.core.cost import Prices, highest_prices, prices_for
from services.orchestrator.core.model.keys import account_of
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput

CHARGED = (Generate, Draw, Score, ScoreLabels, Embed, ScorePairs, Validate)


class Charge:
    """Reserves the maximum usage of a call, and settles its actual usage.

    Raises Overloaded (QUOTA_BUDGET) if a budget may not cover the call.

    Args:
        context_window: Returns the last known context window of a model, or 0 if it is unknown.
    """

    def __init__(self, budgets: Budgets, prices: Mapping[str, Prices], context_window: Callable[[str], int]) -> None:
        self._budgets = budgets
        self._prices = prices
        self._highest_prices = highest_prices(prices)
        self._context_window = context_window

    async def __call__(self, perform: Perform, call: Call[Any], sink: Sink[Any]) -> Any:
        """Make a call within the account's budgets. Calls that use no model tokens are free."""
        if not isinstance(call, CHARGED) or call.used_model is None:
            return await perform(call, sink)
        bound = cache(partial(self._bound_of, call))
        async with self._budgets.spending(account_of(current_principal()), bound) as spending:
            if not spending.is_limited:
                return await perform(call, sink)
            return await self._spend(perform, call, sink, spending, bound)

    async def _spend(
        self, perform: Perform, call: Call[Any], sink: Sink[Any], spending: Spending, bound: Callable[[], Amount]
    ) -> Any:
        match call:
            case Generate():
                return await self._generate(perform, call, sink, spending)
            case Draw():
                return await self._draw(perform, call, sink, spending, bound)
            case Validate():
                return await self._validate(perform, call, sink, spending, bound)
        result = await perform(call, sink)
        spending.used = self._amount_of(result.usage, call, getattr(result, "model", ""))
        return result

    def _bound_of(self, call: Call[Any]) -> Amount:
        """Return the worst case at the highest prices, because a different model may serve the call."""
        prices = self._highest_prices
        match call:
            case Generate() | Draw() | Score():  # The bound of a whole answer covers any continuation.
                return worst_case(call.command, call.hints, prices, self._context_window(call.hints.model))
            case ScoreLabels():
                return decision_bound(call.command, prices, self._context_window(call.hints.model))
            case ScorePairs():
                return texts_bound(call.texts, prices, call.query)
            case Embed():
                return texts_bound(call.texts, prices)
            case Validate():
                return amount_of(judge_bound(call.text, call.request.semantic_intent), prices)
        raise AssertionError(f"{type(call).__name__} is free of charge")

    def _amount_of(self, usage: TokenUsage, call: Call[Any], answering_model: str = "") -> Amount:
        return amount_of(usage, prices_for(self._prices, call.used_model or "", answering_model))

    async def _generate(
        self, perform: Perform, call: Generate, sink: Sink[InferenceDelta], spending: Spending
    ) -> InferenceOutput:
        async def count(delta: InferenceDelta) -> None:
            spending.used = self._amount_of(delta.usage, call, delta.model)
            await sink(delta)

        output: InferenceOutput = await perform(call, count)
        spending.used = self._amount_of(output.usage, call, output.model)
        return output

    async def _draw(
        self,
        perform: Perform,
        call: Draw,
        sink: Sink[CandidateOutput | TokenUsage],
        spending: Spending,
        bound: Callable[[], Amount],
    ) -> None:
        """Draw the candidates. Stopped candidates report no usage, so their worst case is charged."""
        ended: list[Amount] = []
        prompt, model = NOTHING, ""

        async def count(item: CandidateOutput | TokenUsage) -> None:
            nonlocal prompt, model
            if isinstance(item, TokenUsage):
                prompt = self._amount_of(item, call, model)
            else:
                model = item.output.model
                ended.append(self._amount_of(item.output.usage, call, model))
            is_whole = isinstance(item, TokenUsage) and bool(ended)
            spending.used = prompt if is_whole else _used_by_all(call.command.voting.n, prompt, ended, bound)
            await sink(item)

        await perform(call, count)

    async def _validate(
        self, perform: Perform, call: Validate, sink: Sink[Any], spending: Spending, bound: Callable[[], Amount]
    ) -> Enforcement:
        spending.used = bound()  # A judge that ends early reports no usage.
        try:
            enforcement: Enforcement = await perform(call, sink)
        except Unavailable:
            spending.used = NOTHING
            raise
        spending.used = self._amount_of(enforcement.judge_usage, call)
        return enforcement


def _used_by_all(n: int, prompt: Amount, ended: Sequence[Amount], bound: Callable[[], Amount]) -> Amount:
    """Return the maximum usage of a vote's candidates while some are still running."""
    total, maximum = prompt, NOTHING
    for used in ended:
        total, maximum = total + used, maximum.at_least(used)
    if not ended:
        return bound()
    return (total + maximum.times(n - len(ended))).at_most(bound().at_least(total))
