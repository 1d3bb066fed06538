"""Charges the model calls of the constraint service's judge to the account's budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.validation import Enforcement
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.app.budgeting.budgets import Budgets
from services.orchestrator.core.admission.budget import NOTHING, amount_of, judge_bound
from services.orchestrator.core.cost import Prices, highest_prices, prices_for
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.keys import account_of
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.services import CompiledConstraint, ConstraintPort


class BudgetedConstraint(ConstraintPort):
    """A constraint service that raises Overloaded (QUOTA_BUDGET) if the budget may not cover a judgement."""

    def __init__(self, constraint: ConstraintPort, budgets: Budgets, prices: Mapping[str, Prices]) -> None:
        self._constraint = constraint
        self._budgets = budgets
        self._prices = prices
        self._highest_prices = highest_prices(prices)

    async def compile(self, output: OutputContract, sources: Sequence[str] = ()) -> CompiledConstraint:
        return await self._constraint.compile(output, sources)

    async def compile_rules(self, request: Request) -> None:
        await self._constraint.compile_rules(request)

    async def enforce(
        self, text: str, request: Request, *, is_decoder_enforced: bool, sources: Sequence[str] = ()
    ) -> Enforcement:
        enforcing = partial(
            self._constraint.enforce, text, request, is_decoder_enforced=is_decoder_enforced, sources=sources
        )
        if not request.semantic_intent:
            return await enforcing()
        prices = prices_for(self._prices, request.hints.model)
        bound = amount_of(judge_bound(text, request.semantic_intent), self._highest_prices)
        async with self._budgets.spending(account_of(current_principal()), lambda: bound) as spending:
            spending.used = bound  # a judge that ends early reports no usage
            try:
                result = await enforcing()
            except Unavailable:
                spending.used = NOTHING
                raise
            spending.used = amount_of(result.judge_usage, prices)
        return result
