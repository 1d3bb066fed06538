"""Lays chunks out as one system message within a budget of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from pagantic_common.domain.chunks import Chunk, check_chunks
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.scoring import coverage_of
from services.context.app.retrieval import Retrieval, RetrievalPolicy
from services.context.core.chunk import lay_out, line_of
from services.context.ports import TokenCounter


@dataclass(frozen=True, slots=True)
class BuiltContext:
    """The message's text, empty when there is nothing to say; `token_count` is 0 when no budget asked for a count."""

    text: str = ""
    chunks: tuple[Chunk, ...] = ()
    token_count: int = 0
    coverage: float = 0.0


class ContextBuilding:
    """Builds context messages.

    Args:
        retrieval: Finds chunks when none are given.
        counter: Counts tokens; not asked when there is no budget.
        default_max_tokens: Budget of a policy that names none; 0 is none.
    """

    def __init__(self, retrieval: Retrieval, counter: TokenCounter, default_max_tokens: int) -> None:
        self._retrieval = retrieval
        self._counter = counter
        self._default_max_tokens = default_max_tokens

    async def build(self, query: str, policy: RetrievalPolicy, chunks: Sequence[Chunk], model: str) -> BuiltContext:
        """Lay out the given chunks, or the retrieved ones when none are given; drops from the end what does not fit."""
        if policy.max_tokens < 0:
            raise InvalidRequest(f"policy.max_tokens is {policy.max_tokens}: it must not be negative")
        check_chunks(chunks)
        if not chunks:
            chunks = await self._retrieval.retrieve(query, policy)
        budget = policy.max_tokens or self._default_max_tokens
        kept, tokens = (len(chunks), 0) if not (chunks and budget) else await self._fit(chunks, budget, model)
        if not kept:
            return BuiltContext()
        chunks = tuple(chunks[:kept])
        coverage = await asyncio.to_thread(coverage_of, query, [chunk.content for chunk in chunks])
        return BuiltContext(lay_out(chunks), chunks, tokens, coverage)

    async def _fit(self, chunks: Sequence[Chunk], budget: int, model: str) -> tuple[int, int]:
        """Return how many of the chunks fit, and their tokens; counts the whole a few times, however many there are."""
        # Tokens of the whole differ a little from the sum over its lines: the sum says where to look, the whole rules.
        most = min(len(chunks), budget)  # a line has at least one token
        lines = [line_of(number, chunk) for number, chunk in enumerate(chunks[:most], 1)]
        sums = list(accumulate(await self._counter.count(model, lines)))
        probe = max(1, sum(total <= budget for total in sums))
        fits, tokens, exceeds = 0, 0, most + 1
        is_first = True
        while exceeds - fits > 1:
            counted = await self._count_whole(chunks[:probe], model)
            if counted <= budget:
                fits, tokens = probe, counted
            else:
                exceeds = probe
            beside = fits + 1 if counted <= budget else exceeds - 1
            probe = beside if is_first else (fits + exceeds) // 2
            is_first = False
        return fits, tokens

    async def _count_whole(self, chunks: Sequence[Chunk], model: str) -> int:
        return (await self._counter.count(model, [lay_out(chunks)]))[0]
