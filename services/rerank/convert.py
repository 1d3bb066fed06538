"""Rerank messages <-> the domain."""

from __future__ import annotations

from pagantic.rerank.v1 import rerank_service_pb2 as pb
from services.rerank.core.chunk import RerankPolicy, Scorer


def policy_from_proto(request: pb.RerankRequest) -> RerankPolicy:
    """Decode how to score and what to keep."""
    return RerankPolicy(
        scorer=request.scorer,
        min_score=request.min_score if request.HasField("min_score") else None,
        top_k=request.top_k,
    )


def scorer_to_proto(scorer: Scorer) -> pb.Scorer:
    """Encode a scorer."""
    return pb.Scorer(
        name=scorer.name,
        description=scorer.description,
        min_score=scorer.min_score,
        max_score=scorer.max_score,
    )
