"""InferencePort over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

import grpc

from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.codec.messages import (
    message_to_proto,
    model_info_from_proto,
    tool_definition_to_proto,
    usage_from_proto,
)
from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.rpc.peer import Credentials, Peer, pass_on
from services.orchestrator.adapters.inference.answers import MAX_ANSWER_BYTES, read_answer, read_candidates
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.adapters.inference.requests import (
    decide_requests,
    infer_request,
    sample_request,
    score_request,
)
from services.orchestrator.adapters.inference.routed_calls import RoutedCalls
from services.orchestrator.core.execution.commands import Decide, Infer, Sample
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput
from services.orchestrator.ports.services import PairScores, QuestionScores, Scores, TokenCount, Vectors

COUNT_TIMEOUT_S = 10.0
COUNT_ANSWER_S = 3.0  # then the call goes to another replica


class GrpcInference:
    """The inference service behind a channel, and its replicas behind channels of their own."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        patience_s: float,
        busy_patience_s: float = 0.0,
        credentials: Credentials = pass_on,
        replicas: ReplicaSet | None = None,
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._stub: inference_service_pb2_grpc.InferenceServiceAsyncStub = (
            inference_service_pb2_grpc.InferenceServiceStub(channel)
        )
        self._peer = Peer("inference", channel, patience_s=patience_s, credentials=credentials)
        self._calls = RoutedCalls(self._peer, self._stub, busy_patience_s, replicas)
        self._max_answer_bytes = max_answer_bytes
        self._windows: dict[str, int] = {}

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        """Count the tokens of a conversation, 0 if it is empty, and of each text."""
        request = inference_service_pb2.CountTokensRequest(model=model, texts=texts)
        if messages:
            request.chat.messages.extend(message_to_proto(message) for message in messages)
            request.chat.tools.extend(tool_definition_to_proto(tool) for tool in tools)
        reply = await self._peer.call_unary(self._stub.CountTokens, request, COUNT_TIMEOUT_S, answer_s=COUNT_ANSWER_S)
        self._windows[model] = reply.context_window
        return TokenCount(reply.chat_tokens, tuple(reply.text_tokens), reply.context_window, reply.is_estimate)

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the served models, the default model first."""
        reply = await self._peer.call_unary(
            self._stub.ListModels,
            inference_service_pb2.ListModelsRequest(),
            COUNT_TIMEOUT_S,
            answer_s=COUNT_ANSWER_S,
        )
        return [model_info_from_proto(model) for model in reply.models]

    def context_window(self, model: str) -> int:
        """Return the last known context window of the model; 0 if unknown."""
        return self._windows.get(model, 0)

    def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        """Stream the model's text, then the whole output."""
        note_window = partial(self._windows.__setitem__, hints.model)
        return read_answer(self._calls.responses(infer_request(command, hints)), note_window, self._max_answer_bytes)

    def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Yield the prompt's usage, each candidate with its own usage as it ends, then the usage of all."""
        note_window = partial(self._windows.__setitem__, hints.model)
        return read_candidates(
            self._calls.responses(sample_request(command, hints)), note_window, self._max_answer_bytes
        )

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        """Return how probable each beginning of the answer is."""
        reply = await self._peer.call_unary(self._stub.Score, score_request(command, hints, continuations))
        return Scores(tuple(score.logprob for score in reply.scores), usage_from_proto(reply.usage))

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        """Score all questions; a large number of labels is split into several calls, which share the prefix cache."""
        replies = [
            await self._peer.call_unary(self._stub.Score, request) for request in decide_requests(command, hints)
        ]
        logprobs = [tuple(score.logprob for score in branch.scores) for reply in replies for branch in reply.branches]
        usage = sum((usage_from_proto(reply.usage) for reply in replies), TokenUsage())
        return QuestionScores(tuple(logprobs), usage, replies[0].model.name)

    async def embed(self, texts: Sequence[str], model: str) -> Vectors:
        """Return a vector of unit length for each text."""
        request = inference_service_pb2.EmbedRequest(model=model, texts=texts)
        reply = await self._peer.call_unary(self._stub.Embed, request)
        return Vectors(tuple(embedding.values for embedding in reply.embeddings), usage_from_proto(reply.usage))

    async def score_pairs(self, query: str, texts: Sequence[str], model: str) -> PairScores:
        """Return how relevant each text is to a query."""
        request = inference_service_pb2.ScorePairsRequest(model=model, query=query, texts=texts)
        reply = await self._peer.call_unary(self._stub.ScorePairs, request)
        return PairScores(tuple(reply.scores), usage_from_proto(reply.usage))
