"""Rerank messages <-> the domain."""

from __future__ import annotations

from pagantic.rerank.v1 import rerank_service_pb2 as pb
from services.rerank.core.chunk import RerankPolicy, Scorer


def policy_from_proto(request: pb.RerankRequest) -> RerankPolicy:
    """Decode a policy."""
    if not request.HasField("min_score"):
        return RerankPolicy(scorer=request.scorer, top_k=request.top_k)
    return RerankPolicy(scorer=request.scorer, min_score=request.min_score, top_k=request.top_k)


def scorer_to_proto(scorer: Scorer) -> pb.Scorer:
    """Encode a scorer."""
    return pb.Scorer(
        name=scorer.name,
        description=scorer.description,
        min_score=scorer.min_score,
        max_score=scorer.max_score,
    )
