"""The confidence that retrieved context gives an answer."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.text.scoring import coverage_of

FRACTIONS = frozenset({"keyword"})  # score kinds that measure the matched fraction of a query, in [0, 1]


def retrieval_confidence(query: str, chunks: Sequence[Chunk]) -> float | None:
    """Return the mean score if all scores are fractions, else the fraction of query terms found; None without chunks.

    Other scores have no scale: BM25 is unbounded, a cosine may be negative, and reciprocal ranks only give an order.
    """
    if not chunks:
        return None
    if all(chunk.score_kind in FRACTIONS for chunk in chunks):
        return min(1.0, max(0.0, sum(chunk.score for chunk in chunks) / len(chunks)))
    return coverage_of(query, (chunk.content for chunk in chunks))
