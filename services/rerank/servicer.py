"""Implements RerankService over gRPC: decodes requests, reranks chunks, and encodes responses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.rerank.v1 import ranking_pb2
from pagantic.rerank.v1 import rerank_service_pb2 as pb
from pagantic.rerank.v1 import rerank_service_pb2_grpc as pb_grpc
from pagantic_common.codec.chunks import chunk_from_proto, chunk_to_proto
from pagantic_common.codec.fields import EnumCodec, optional
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.ranking import Fusion
from services.rerank.app.reranking import Reranking
from services.rerank.core.policy import RerankPolicy, WeightedScorer
from services.rerank.ports import ScorerInfo

_FUSIONS = EnumCodec(ranking_pb2.ScoreFusion, Fusion, "SCORE_FUSION_", unknown=None)
Context = grpc.aio.ServicerContext[Any, Any]

# The scope that each method requires.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "Rerank": Scope.EXECUTE,
        "ListScorers": Scope.READ,
    }
)


class RerankServicer(pb_grpc.RerankServiceServicer):
    """Serves the scorers to callers."""

    def __init__(self, reranking: Reranking) -> None:
        self._reranking = reranking

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        chunks = [chunk_from_proto(chunk) for chunk in request.chunks]
        reranked = await self._reranking.rerank(request.query, chunks, policy_from_proto(request))
        return pb.RerankResponse(chunks=[chunk_to_proto(chunk) for chunk in reranked])

    async def ListScorers(self, request: pb.ListScorersRequest, context: Context) -> pb.ListScorersResponse:
        scorers = [scorer_to_proto(info, weight) for info, weight in self._reranking.infos]
        return pb.ListScorersResponse(scorers=scorers)


def policy_from_proto(request: pb.RerankRequest) -> RerankPolicy:
    """Decode a policy. A fusion that this version does not know becomes None.

    Raises InvalidRequest if both scorer and scorers are set.
    """
    if request.scorer and request.scorers:
        raise InvalidRequest(f"scorer is {request.scorer[:80]!r} and scorers is set, too: set only one of them")
    scorers = tuple(map(_weighted_from_proto, request.scorers))
    if request.scorer:
        scorers = (WeightedScorer(request.scorer),)
    fusion = _FUSIONS.from_proto(request.fusion)
    if request.fusion == ranking_pb2.SCORE_FUSION_UNSPECIFIED:
        fusion = Fusion.WEIGHTED
    return RerankPolicy(
        scorers=scorers,
        min_score=optional(request, "min_score"),
        top_k=request.top_k,
        fusion=fusion,
        diversity=request.diversity,
        max_per_source=request.max_per_source,
    )


def scorer_to_proto(scorer: ScorerInfo, default_weight: float) -> pb.Scorer:
    """Encode a scorer with its default weight."""
    return pb.Scorer(
        name=scorer.name,
        description=scorer.description,
        min_score=scorer.min_score,
        max_score=scorer.max_score,
        default_weight=default_weight,
    )


def _weighted_from_proto(scorer: ranking_pb2.WeightedScorer) -> WeightedScorer:
    weight = 1.0
    if scorer.HasField("weight"):
        weight = scorer.weight
    return WeightedScorer(scorer.scorer, weight, scorer.model)
