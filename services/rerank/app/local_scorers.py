"""Scorers that ask no model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.scoring import TextIndex
from services.rerank.ports import Scorer, ScorerInfo


class IndexScorer:
    """Scores by the words of a query; a Scorer.

    Args:
        info: The scorer for callers.
        search: Returns, for an index of the chunks and a query, the scores above 0 by position.
    """

    def __init__(self, info: ScorerInfo, search: Callable[[TextIndex, str], dict[int, float]]) -> None:
        self.info = info
        self._search = search

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:  # noqa: ARG002
        """Return a score for each chunk, 0 without a term of the query."""
        texts = [chunk.content for chunk in chunks]
        # A thread, because a full request takes long enough to delay others.
        found = await asyncio.to_thread(lambda: self._search(TextIndex(texts), query))
        return [found.get(position, 0.0) for position in range(len(texts))]


class RetrieverScorer:
    """Scores with the scores that the chunks come with; a Scorer."""

    info = ScorerInfo("retriever", "the score that the chunk came with", -math.inf, math.inf)

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:  # noqa: ARG002
        """Return each chunk's own score."""
        return [chunk.score for chunk in chunks]


def local_scorers() -> tuple[Scorer, ...]:
    """Return the scorers that ask no model."""
    bm25 = ScorerInfo("bm25", "Okapi BM25 over the given chunks; 0 when no term of the query occurs", 0.0, math.inf)
    keyword = ScorerInfo("keyword", "fraction of the query's distinct terms that the chunk has", 0.0, 1.0)
    return (IndexScorer(bm25, TextIndex.bm25), IndexScorer(keyword, TextIndex.coverage), RetrieverScorer())
