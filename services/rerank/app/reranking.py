"""Implements Rerank: scores chunks again, and selects the chunks to keep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pagantic_common.domain.chunks import Chunk, check_chunks
from pagantic_common.domain.errors import InvalidRequest
from services.rerank.app.scorers import EmbeddingScorer
from services.rerank.core.policy import RerankPolicy, WeightedScorer
from services.rerank.core.selection import Column, best_first, rescored
from services.rerank.ports import Scorer, ScorerInfo


class Reranking:
    """Reranks chunks.

    Raises InvalidRequest if `default` names an unknown scorer.

    Args:
        scorers: The scorers that requests may name.
        embedding: The scorer whose embeddings measure the difference between chunks.
        default: The weights by scorer name for requests that name no scorers. At least one weight is given.
    """

    def __init__(self, scorers: Sequence[Scorer], embedding: EmbeddingScorer, default: Mapping[str, float]) -> None:
        self._scorers = {scorer.info.name: scorer for scorer in scorers}
        self._embedding = embedding
        self._default = tuple(WeightedScorer(name, weight) for name, weight in default.items())
        for weighted in self._default:
            self._find(weighted)

    @property
    def infos(self) -> list[tuple[ScorerInfo, float]]:
        """The descriptions of the scorers for callers, with their default weights; default scorers come first."""
        weights = {weighted.name: weighted.weight for weighted in self._default}
        names = [*weights, *(name for name in self._scorers if name not in weights)]
        return [(self._scorers[name].info, weights.get(name, 0.0)) for name in names]

    async def rerank(self, query: str, chunks: Sequence[Chunk], policy: RerankPolicy) -> list[Chunk]:
        """Return the chunks to keep, with their new scores.

        The best chunks come first, and ties keep their order. If the policy sets a diversity, the chunks are in order
        of maximal marginal relevance. Raises InvalidRequest if a scorer is unknown, the query is empty, or a value is
        out of its range. Also raises the errors of the scorers.
        """
        policy = replace(policy, scorers=policy.scorers or self._default)
        policy.check()
        scorers = [self._find(weighted) for weighted in policy.scorers]
        if not query.strip():
            raise InvalidRequest("query is empty")
        # This runs in a thread, because checking a request of maximum size would block the event loop.
        await asyncio.to_thread(check_chunks, chunks)
        # The scorers run one after another, because concurrent model calls would only compete for the same engine.
        columns = [
            Column(weighted, await scorer.score(query, chunks, weighted.model), scorer.info.min_score)
            for weighted, scorer in zip(policy.scorers, scorers, strict=True)
        ]
        selected = await asyncio.to_thread(lambda: best_first(rescored(chunks, columns, policy), policy))
        limit = policy.top_k or len(selected)
        if policy.diversity and selected:
            return await self._embedding.spread(selected, policy.diversity, limit, self._spreading_model(policy))
        return selected[:limit]

    def _find(self, weighted: WeightedScorer) -> Scorer:
        scorer = self._scorers.get(weighted.name)
        if scorer is None:
            choices = ", ".join(map(repr, self._scorers))
            raise InvalidRequest(f"scorer {weighted.name[:80]!r} is not known: use one of {choices}")
        return scorer

    def _spreading_model(self, policy: RerankPolicy) -> str:
        """Return the model of the policy's embedding scorer, or an empty string for the configured model."""
        models = (weighted.model for weighted in policy.scorers if weighted.name == self._embedding.info.name)
        return next(models, "")
