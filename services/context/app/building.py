"""Lays out chunks as a message within a token budget."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pagantic_common.domain.chunks import Chunk, check_chunks, lay_out, line_of
from pagantic_common.domain.text.scoring import coverage_of
from services.context.app.retrieval import Retrieval
from services.context.core.policy import RetrievalPolicy
from services.context.ports import TokenCounter


@dataclass(frozen=True, slots=True)
class BuiltContext:
    """The text of the message, its chunks, and the number of chunks without an embedding.

    The text is empty if there are no chunks. `token_count` is 0 without a budget, because tokens are then not counted.
    """

    text: str = ""
    chunks: tuple[Chunk, ...] = ()
    token_count: int = 0
    coverage: float = 0.0
    unembedded_count: int = 0


class ContextBuilding:
    """Builds context messages.

    Args:
        retrieval: Retrieves chunks for a request without chunks.
        counter: Counts tokens if there is a budget.
        default_max_tokens: The budget for policies without a budget. 0 means no budget.
    """

    def __init__(self, retrieval: Retrieval, counter: TokenCounter, default_max_tokens: int) -> None:
        self._retrieval = retrieval
        self._counter = counter
        self._default_max_tokens = default_max_tokens

    async def build(
        self,
        tenant: str,
        query: str,
        policy: RetrievalPolicy,
        chunks: Sequence[Chunk],
        model: str,
        *,
        more_queries: Sequence[str] = (),
    ) -> BuiltContext:
        """Lay out the given chunks, or retrieve the tenant's chunks if none are given.

        The last chunks are dropped to fit the budget.
        """
        policy.check()
        await asyncio.to_thread(check_chunks, chunks)
        unembedded = 0
        if not chunks:
            result = await self._retrieval.retrieve(tenant, query, policy, more_queries)
            chunks, unembedded = result.chunks, result.unembedded_count
        kept, tokens = len(chunks), 0
        budget = policy.max_tokens or self._default_max_tokens
        if chunks and budget:
            kept, tokens = await self._fit(chunks, budget, model, is_fenced=policy.is_fenced)
        if not kept:
            return BuiltContext(unembedded_count=unembedded)
        chunks = tuple(chunks[:kept])
        coverage = await asyncio.to_thread(coverage_of, query, [chunk.content for chunk in chunks])
        return BuiltContext(lay_out(chunks, is_fenced=policy.is_fenced), chunks, tokens, coverage, unembedded)

    async def _fit(self, chunks: Sequence[Chunk], budget: int, model: str, *, is_fenced: bool) -> tuple[int, int]:
        """Return the number of chunks that fit the budget, and their token count.

        A whole text has a few tokens more or less than the sum over its lines. The sum therefore gives the first guess,
        and the second guess is one chunk more or less. Bisection follows, so a whole text is counted only a few times.
        """
        max_lines = min(len(chunks), budget)  # A line has at least one token.
        lines = [line_of(number, chunk) for number, chunk in enumerate(chunks[:max_lines], 1)]
        sums = list(accumulate(await self._counter.count(model, lines)))
        guess = max(1, sum(total <= budget for total in sums))
        fits = tokens = 0
        exceeds = max_lines + 1
        is_first = True
        while exceeds - fits > 1:
            (counted,) = await self._counter.count(model, [lay_out(chunks[:guess], is_fenced=is_fenced)])
            if counted <= budget:
                fits, tokens = guess, counted
                second_guess = guess + 1
            else:
                exceeds = guess
                second_guess = guess - 1
            guess = (fits + exceeds) // 2
            if is_first:
                guess = second_guess
                is_first = False
        return fits, tokens
