"""RerankService over gRPC: decode, rerank, encode."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import grpc

from pagantic.rerank.v1 import rerank_service_pb2 as pb
from pagantic.rerank.v1 import rerank_service_pb2_grpc as pb_grpc
from pagantic_common.codec.chunks import chunk_from_proto, chunk_to_proto
from pagantic_common.domain.calls.principal import Scope
from services.rerank.app.reranking import Reranking
from services.rerank.convert import policy_from_proto, scorer_to_proto

Context = grpc.aio.ServicerContext[Any, Any]

# What a caller needs for each method.
SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        "Rerank": Scope.EXECUTE,
        "ListScorers": Scope.READ,
    }
)


class RerankServicer(pb_grpc.RerankServiceServicer):
    """Serves the scorers."""

    def __init__(self, reranking: Reranking) -> None:
        self._reranking = reranking

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        chunks = [chunk_from_proto(chunk) for chunk in request.chunks]
        reranked = await self._reranking.rerank(request.query, chunks, policy_from_proto(request))
        return pb.RerankResponse(chunks=[chunk_to_proto(chunk) for chunk in reranked])

    async def ListScorers(self, request: pb.ListScorersRequest, context: Context) -> pb.ListScorersResponse:
        scorers = [scorer_to_proto(info, weight) for info, weight in self._reranking.infos]
        return pb.ListScorersResponse(scorers=scorers)
