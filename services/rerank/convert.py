"""Rerank messages <-> the domain."""

from __future__ import annotations

from pagantic.common.v1 import chunk_pb2
from pagantic.rerank.v1 import rerank_service_pb2 as pb
from services.rerank.core.chunk import Chunk, RerankPolicy, Scorer


def policy_from_proto(request: pb.RerankRequest) -> RerankPolicy:
    """Decode how to score and what to keep."""
    return RerankPolicy(
        scorer=request.scorer,
        min_score=request.min_score if request.HasField("min_score") else None,
        top_k=request.top_k,
    )


def chunk_from_proto(chunk: chunk_pb2.Chunk) -> Chunk:
    """Decode a chunk."""
    return Chunk(
        id=chunk.id,
        content=chunk.content,
        source=chunk.source,
        score=chunk.score,
        score_kind=chunk.score_kind,
        metadata_json=chunk.metadata_json,
    )


def chunk_to_proto(chunk: Chunk) -> chunk_pb2.Chunk:
    """Encode a chunk."""
    return chunk_pb2.Chunk(
        id=chunk.id,
        content=chunk.content,
        source=chunk.source,
        score=chunk.score,
        score_kind=chunk.score_kind,
        metadata_json=chunk.metadata_json,
    )


def scorer_to_proto(scorer: Scorer) -> pb.Scorer:
    """Encode a scorer."""
    return pb.Scorer(
        name=scorer.name,
        description=scorer.description,
        min_score=scorer.min_score,
        max_score=scorer.max_score,
    )
