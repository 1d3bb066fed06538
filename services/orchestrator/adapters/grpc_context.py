"""Implements ContextPort over gRPC: calls the context service and, if the policy requires it, the rerank service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import grpc

from pagantic.context.v1 import context_service_pb2, context_service_pb2_grpc
from pagantic.rerank.v1 import rerank_service_pb2, rerank_service_pb2_grpc
from pagantic_common.codec.chunks import chunk_from_proto, chunk_to_proto
from pagantic_common.codec.messages import message_from_proto
from pagantic_common.domain.chunks import Chunk, lay_out
from pagantic_common.domain.messages import Message
from pagantic_common.rpc.peer import Credentials, Peer, pass_on
from services.orchestrator.convert.request import SCORE_FUSIONS, context_to_proto, scorer_to_proto
from services.orchestrator.core.model.retrieval import ContextPolicy
from services.orchestrator.ports.services import BuiltContext, Ranking


class GrpcContext:
    """Client of the context and rerank services."""

    def __init__(
        self,
        context: grpc.aio.Channel,
        rerank: grpc.aio.Channel,
        patience_s: float,
        credentials: Credentials = pass_on,
    ) -> None:
        self._context: context_service_pb2_grpc.ContextServiceAsyncStub = context_service_pb2_grpc.ContextServiceStub(
            context
        )
        self._rerank: rerank_service_pb2_grpc.RerankServiceAsyncStub = rerank_service_pb2_grpc.RerankServiceStub(rerank)
        self._context_peer = Peer("context", context, patience_s=patience_s, credentials=credentials)
        self._rerank_peer = Peer("rerank", rerank, patience_s=patience_s, credentials=credentials)

    async def build(
        self, query: str, policy: ContextPolicy, model: str, more_queries: Sequence[str] = ()
    ) -> BuiltContext:
        """Retrieve the chunks, rerank them if the policy requires it, and build the context message."""
        chunks: tuple[Chunk, ...] = ()
        unembedded = 0
        if policy.scorer is not None:
            searched = replace(policy, min_score=None)  # min_score applies to the reranked score.
            retrieval = await self._retrieve(query, searched, more_queries)
            unembedded = retrieval.unembedded_chunk_count
            ranking = Ranking(policy.scorer, policy.min_score, policy.top_k, policy.ranking)
            chunks = await self.rerank(query, _chunks_of(retrieval), ranking)
            if not chunks:
                return BuiltContext(None, unembedded_count=unembedded)
        request = context_service_pb2.BuildContextRequest(
            query=query,
            policy=context_to_proto(policy),
            chunks=[chunk_to_proto(chunk) for chunk in chunks],
            model=model,
            more_queries=more_queries,
        )
        reply = await self._context_peer.call_unary(self._context.BuildContext, request)
        unembedded += reply.unembedded_chunk_count
        if not reply.HasField("message"):
            return BuiltContext(None, unembedded_count=unembedded)
        laid_out = tuple(chunk_from_proto(chunk) for chunk in reply.chunks)
        message = message_from_proto(reply.message)
        # An earlier version of the context service ignores roles and always returns a system message.
        if message.role is not policy.role:
            message = Message(policy.role, content=lay_out(laid_out, is_fenced=not policy.is_system))
        return BuiltContext(message, laid_out, reply.token_count, unembedded)

    async def retrieve(self, query: str, policy: ContextPolicy, more_queries: Sequence[str] = ()) -> tuple[Chunk, ...]:
        """Return the retrieved chunks, best first."""
        return _chunks_of(await self._retrieve(query, policy, more_queries))

    async def rerank(self, query: str, chunks: Sequence[Chunk], ranking: Ranking) -> tuple[Chunk, ...]:
        """Return the chunks in their new order, without the chunks below min_score."""
        request = rerank_service_pb2.RerankRequest(
            query=query,
            chunks=[chunk_to_proto(chunk) for chunk in chunks],
            scorer=ranking.scorer,
            min_score=ranking.min_score,
            top_k=ranking.top_k,
            scorers=[scorer_to_proto(scorer) for scorer in ranking.options.scorers],
            fusion=SCORE_FUSIONS.to_proto(ranking.options.fusion),
            diversity=ranking.options.diversity,
            max_per_source=ranking.options.max_per_source,
        )
        reply = await self._rerank_peer.call_unary(self._rerank.Rerank, request)
        return tuple(chunk_from_proto(chunk) for chunk in reply.chunks)

    async def _retrieve(
        self, query: str, policy: ContextPolicy, more_queries: Sequence[str]
    ) -> context_service_pb2.RetrieveResponse:
        request = context_service_pb2.RetrieveRequest(
            query=query, policy=context_to_proto(policy), more_queries=more_queries
        )
        return await self._context_peer.call_unary(self._context.Retrieve, request)


def _chunks_of(found: context_service_pb2.RetrieveResponse) -> tuple[Chunk, ...]:
    return tuple(chunk_from_proto(chunk) for chunk in found.chunks)
