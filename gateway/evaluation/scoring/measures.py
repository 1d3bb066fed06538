"""Measures of an answer that do not judge it: its time, tokens and cost."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from gateway.evaluation.scoring.scorer import Score, Scorer, Subject

_TOKENS_PER_PRICE = 1_000_000
MAX_PRICE_USD = 1e9


class Latency(Scorer):
    """The time from the execution's admission to its end; for a stored answer, the original execution's time."""

    unit: ClassVar[str] = "s"
    type: Literal["latency"] = "latency"

    async def score(self, subject: Subject) -> Score:
        """Return the time as a score, which has no value if the request was not admitted."""
        return Score(subject.answer.latency_s)


class Tokens(Scorer):
    """The prompt and output tokens of all inferences of the execution."""

    unit: ClassVar[str] = "tokens"
    type: Literal["tokens"] = "tokens"

    async def score(self, subject: Subject) -> Score:
        """Return the sum of prompt and output tokens."""
        usage = subject.answer.response.token_usage
        return Score(float(usage.prompt_tokens + usage.output_tokens))


class Cost(Scorer):
    """The cost at prices in USD per million tokens. `cached_prompt` defaults to the price of `prompt`."""

    unit: ClassVar[str] = "USD"
    type: Literal["cost"] = "cost"
    prompt: float = Field(ge=0, le=MAX_PRICE_USD)
    output: float = Field(ge=0, le=MAX_PRICE_USD)
    cached_prompt: float | None = Field(default=None, ge=0, le=MAX_PRICE_USD)

    async def score(self, subject: Subject) -> Score:
        """Return the cost of all inferences of the execution."""
        usage = subject.answer.response.token_usage
        cached_price = self.cached_prompt
        if cached_price is None:
            cached_price = self.prompt
        computed = usage.prompt_tokens - usage.cached_prompt_tokens
        total = computed * self.prompt + usage.cached_prompt_tokens * cached_price + usage.output_tokens * self.output
        return Score(total / _TOKENS_PER_PRICE)
