"""How sure retrieved context makes us of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.scoring import coverage_of

FRACTIONS = frozenset({"keyword"})  # score kinds that tell in [0, 1] how much of a query was found


def retrieval_confidence(query: str, chunks: Sequence[Chunk]) -> float | None:
    """Return the mean score where the scores are fractions, else the fraction of query terms found; None of nothing.

    BM25 has no upper end, a cosine is below zero too, and reciprocal ranks tell of an order only.
    """
    if not chunks:
        return None
    if all(chunk.score_kind in FRACTIONS for chunk in chunks):
        return min(1.0, max(0.0, sum(chunk.score for chunk in chunks) / len(chunks)))
    return coverage_of(query, (chunk.content for chunk in chunks))
