"""Fuses the scores of chunks, and selects the chunks to keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagantic_common.domain.chunks import MAX_CHUNK_METADATA_BYTES, Chunk, parse_metadata
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.domain.text.ranking import Fusion, Order, Scores, best_positions, fuse_ranks, fuse_scores
from services.rerank.core.policy import RerankPolicy, WeightedScorer


@dataclass(frozen=True, slots=True)
class Column:
    """A scorer's scores by position. None means that the chunk has no score and counts as `lowest`."""

    scorer: WeightedScorer
    scores: Sequence[float | None]
    lowest: float = 0.0


def rescored(chunks: Sequence[Chunk], columns: Sequence[Column], policy: RerankPolicy) -> list[Chunk]:
    """Return the chunks with their new scores, in the same order.

    The metadata keeps the earlier score and its kind.
    """
    scores = _fused(columns, policy)
    return [
        replace(
            chunk,
            score=scores[position],
            score_kind=policy.score_kind,
            metadata_json=_metadata_of(position, chunk, columns),
        )
        for position, chunk in enumerate(chunks)
    ]


def best_first(chunks: Sequence[Chunk], policy: RerankPolicy) -> list[Chunk]:
    """Return the chunks that score at least `min_score`, at most `max_per_source` of each source.

    The best chunks come first, and ties keep their order.
    """
    kept = [chunk for chunk in chunks if policy.min_score is None or chunk.score >= policy.min_score]
    kept.sort(key=lambda chunk: chunk.score, reverse=True)  # a reverse sort is stable too
    if not policy.max_per_source:
        return kept
    counts: Counter[str] = Counter()
    selected = []
    for chunk in kept:
        counts[chunk.source] += 1
        if counts[chunk.source] <= policy.max_per_source:
            selected.append(chunk)
    return selected


def _fused(columns: Sequence[Column], policy: RerankPolicy) -> list[float]:
    if len(columns) == 1:
        (column,) = columns
        return [column.lowest if score is None else score for score in column.scores]
    total = sum(column.scorer.weight for column in columns)
    legs = [(*_leg(column), column.scorer.weight / total) for column in columns]
    if policy.fusion is Fusion.RECIPROCAL_RANK:
        fused = fuse_ranks([(order, weight) for order, _, weight in legs])
    else:
        fused = fuse_scores(legs)
    return [fused.get(position, 0.0) for position in range(len(columns[0].scores))]


def _leg(column: Column) -> tuple[Order, Scores]:
    scores = np.array([-math.inf if score is None else score for score in column.scores], dtype=np.float64)
    return best_positions(scores, -math.inf, len(scores)), scores


def _metadata_of(position: int, chunk: Chunk, columns: Sequence[Column]) -> str:
    metadata = parse_metadata(f"chunks[{position}]", chunk.metadata_json, MAX_CHUNK_METADATA_BYTES)
    added: dict[str, Any] = {"retriever_score": chunk.score, "retriever_score_kind": chunk.score_kind}
    own = {column.scorer.label: column.scores[position] for column in columns}
    if len(columns) > 1 or None in own.values():
        added["rerank_scores"] = own
    return dump_json({**metadata, **added})
