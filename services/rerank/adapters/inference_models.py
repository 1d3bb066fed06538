"""Calls the models of the inference service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.codec.messages import message_to_proto
from pagantic_common.domain.errors import ErrorCode, Unavailable
from pagantic_common.domain.messages import Message
from pagantic_common.domain.text.ranking import Vectors
from pagantic_common.rpc.inference.embedder import InferenceEmbedder
from pagantic_common.rpc.inference.pools import InferencePools
from services.rerank.ports import Continuation

CALL_S = 60.0  # for 256 embeddings, 32 pairs or one judgement; the caller's deadline also applies


class InferenceModels:
    """Implements LanguageModel, PairScorer and TextEmbedder.

    Raises the errors of the inference service, and Unavailable (INFERENCE_MODEL_UNAVAILABLE) if the service cannot be
    reached.
    """

    def __init__(self, pools: InferencePools, timeout_s: float = CALL_S) -> None:
        self._pools = pools
        self._embedder = InferenceEmbedder(pools, timeout_s)
        self._timeout_s = timeout_s

    async def embed(self, model: str, texts: Sequence[str]) -> Vectors:
        """Return one vector per text."""
        with _naming_the_address():
            return await self._embedder.embed(model, texts)

    async def score_pairs(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return the score of each text for the query."""
        request = pb.ScorePairsRequest(model=model, query=query, texts=texts)
        pool = self._pools.of(model)
        with _naming_the_address():
            reply = await pool.peer.call_unary(pool.stub.ScorePairs, request, self._timeout_s)
        return list(reply.scores)

    async def weigh(self, model: str, prompt: Sequence[Message], continuations: Sequence[str]) -> list[Continuation]:
        """Return each continuation's log-probability after the prompt, rendered with the model's chat template."""
        chat = generation_pb2.ChatPrompt(messages=map(message_to_proto, prompt))
        request = pb.ScoreRequest(model=model, chat=chat, continuations=continuations)
        pool = self._pools.of(model)
        with _naming_the_address():
            reply = await pool.peer.call_unary(pool.stub.Score, request, self._timeout_s)
        return [Continuation(score.logprob, len(score.tokens)) for score in reply.scores]


@contextmanager
def _naming_the_address() -> Iterator[None]:
    try:
        yield
    except Unavailable as error:
        if error.code is not None:
            raise
        raise Unavailable(
            f"the scorer's model cannot be asked: {error}; PAGANTIC_RERANK_INFERENCE_ADDRESS is its address",
            code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE,
            retry_after_s=error.retry_after_s,
        ) from None
