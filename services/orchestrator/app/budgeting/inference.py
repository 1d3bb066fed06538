"""The inference service, limited by the budgets of the current account."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache, partial

from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.app.budgeting.budgets import Budgets
from services.orchestrator.core.admission.budget import (
    NOTHING,
    Amount,
    amount_of,
    decision_bound,
    texts_bound,
    worst_case,
)
from services.orchestrator.core.cost import Prices, highest_prices, prices_for
from services.orchestrator.core.model.keys import account_of
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample
from services.orchestrator.ports.services import (
    InferencePort,
    PairScores,
    QuestionScores,
    Scores,
    TokenCount,
    Vectors,
)


class BudgetedInference(InferencePort):
    """An inference service that raises Overloaded (QUOTA_BUDGET) if the budget may not cover an inference."""

    def __init__(self, inference: InferencePort, budgets: Budgets, prices: Mapping[str, Prices]) -> None:
        self._inference = inference
        self._budgets = budgets
        self._prices = prices
        self._highest_prices = highest_prices(prices)

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        return await self._inference.count_tokens(messages, tools, texts, model)

    async def list_models(self) -> Sequence[ModelInfo]:
        return await self._inference.list_models()

    def context_window(self, model: str) -> int:
        return self._inference.context_window(model)

    async def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        bound = partial(self._bound, command, hints)
        async with (
            self._budgets.spending(account_of(current_principal()), bound) as spending,
            aclosing(self._inference.infer(command, hints)) as pieces,
        ):
            async for piece in pieces:
                spending.used = amount_of(piece.usage, prices_for(self._prices, hints.model, piece.model))
                yield piece

    async def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Sample the candidates. Stopped candidates report no usage, so their worst case is charged."""
        bound, prices = cache(partial(self._bound, command, hints)), prices_for(self._prices, hints.model)
        ended: list[Amount] = []
        prompt = NOTHING
        async with (
            self._budgets.spending(account_of(current_principal()), bound) as spending,
            aclosing(self._inference.sample(command, hints)) as items,
        ):
            async for item in items:
                if isinstance(item, TokenUsage):
                    prompt = amount_of(item, prices)
                else:
                    prices = prices_for(self._prices, hints.model, item.output.model)
                    ended.append(amount_of(item.output.usage, prices))
                is_whole = isinstance(item, TokenUsage) and bool(ended)
                spending.used = prompt if is_whole else _used_by_all(command, prompt, ended, bound)
                yield item

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        bound = partial(self._bound, command, hints)  # the bound of a whole answer covers any continuation
        async with self._budgets.spending(account_of(current_principal()), bound) as spending:
            scores = await self._inference.score(command, hints, continuations)
            spending.used = amount_of(scores.usage, prices_for(self._prices, hints.model))
        return scores

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        window = self.context_window(hints.model)
        bound = partial(decision_bound, command, self._highest_prices, window)
        async with self._budgets.spending(account_of(current_principal()), bound) as spending:
            scores = await self._inference.decide(command, hints)
            spending.used = amount_of(scores.usage, prices_for(self._prices, hints.model, scores.model))
        return scores

    async def embed(self, texts: Sequence[str], model: str) -> Vectors:
        bound = partial(texts_bound, texts, self._highest_prices)
        async with self._budgets.spending(account_of(current_principal()), bound) as spending:
            vectors = await self._inference.embed(texts, model)
            spending.used = amount_of(vectors.usage, prices_for(self._prices, model))
        return vectors

    async def score_pairs(self, query: str, texts: Sequence[str], model: str) -> PairScores:
        bound = partial(texts_bound, texts, self._highest_prices, query)
        async with self._budgets.spending(account_of(current_principal()), bound) as spending:
            scores = await self._inference.score_pairs(query, texts, model)
            spending.used = amount_of(scores.usage, prices_for(self._prices, model))
        return scores

    def _bound(self, command: Infer | Sample, hints: Hints) -> Amount:
        """Return the worst-case amount at the highest prices, because a different model may serve the request."""
        return worst_case(command, hints, self._highest_prices, self.context_window(hints.model))


def _used_by_all(command: Sample, prompt: Amount, ended: Sequence[Amount], bound: Callable[[], Amount]) -> Amount:
    """Return the maximum amount that a vote's candidates can have used while some of them are still running."""
    total, maximum = prompt, NOTHING
    for used in ended:
        total, maximum = total + used, maximum.at_least(used)
    if not ended:
        return bound()
    return (total + maximum.times(command.voting.n - len(ended))).at_most(bound().at_least(total))
