"""Scores and orders chunks anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pagantic_common.domain.chunks import MAX_CHUNK_METADATA_BYTES, Chunk, check_chunks, check_min_score, parse_metadata
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.domain.text.scoring import TextIndex


@dataclass(frozen=True, slots=True)
class Scorer:
    """A way to score; `score` returns, for a query and texts, the scores above 0 by position."""

    name: str
    description: str
    min_score: float
    max_score: float
    score: Callable[[str, Sequence[str]], dict[int, float]]


# The first is the default.
SCORERS: Final = (
    Scorer(
        "bm25",
        "Okapi BM25 over the given chunks; 0 when no term of the query occurs",
        0.0,
        math.inf,
        lambda query, texts: TextIndex(texts).bm25(query),
    ),
    Scorer(
        "keyword",
        "fraction of the query's distinct terms that the chunk has",
        0.0,
        1.0,
        lambda query, texts: TextIndex(texts).coverage(query),
    ),
)


@dataclass(frozen=True, slots=True)
class RerankPolicy:
    """How to score and what to keep; an empty scorer is the default, `top_k` of 0 keeps all."""

    scorer: str = ""
    min_score: float | None = None
    top_k: int = 0


def find_scorer(name: str) -> Scorer:
    """Return the scorer with this name, or the default for an empty name; raises InvalidRequest for an unknown name."""
    for scorer in SCORERS:
        if name in (scorer.name, ""):
            return scorer
    known = ", ".join(repr(scorer.name) for scorer in SCORERS)
    raise InvalidRequest(f"scorer {name[:80]!r} is not known: use one of {known}")


def rerank(query: str, chunks: Sequence[Chunk], policy: RerankPolicy) -> list[Chunk]:
    """Return the chunks with their new scores, best first, ties in their order.

    The metadata keeps the earlier score and its kind. Raises InvalidRequest for an unknown scorer, an empty query, too
    many chunks, a negative `top_k`, and metadata other than a JSON object.
    """
    scorer = find_scorer(policy.scorer)
    if not query.strip():
        raise InvalidRequest("query is empty")
    check_chunks(chunks)
    check_min_score("min_score", policy.min_score)
    if policy.top_k < 0:
        raise InvalidRequest(f"top_k is {policy.top_k}: it must not be negative")
    scores = scorer.score(query, [chunk.content for chunk in chunks])
    scored = [
        replace(
            chunk,
            score=scores.get(position, 0.0),
            score_kind=scorer.name,
            metadata_json=_keep_score(position, chunk),
        )
        for position, chunk in enumerate(chunks)
    ]
    kept = [chunk for chunk in scored if policy.min_score is None or chunk.score >= policy.min_score]
    kept.sort(key=lambda chunk: chunk.score, reverse=True)  # stable, also in reverse
    return kept[: policy.top_k or None]


def _keep_score(position: int, chunk: Chunk) -> str:
    metadata = parse_metadata(f"chunks[{position}]", chunk.metadata_json, MAX_CHUNK_METADATA_BYTES)
    return dump_json({**metadata, "retriever_score": chunk.score, "retriever_score_kind": chunk.score_kind})
