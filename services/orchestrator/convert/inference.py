"""Converts the outputs and settings of inferences, and reports of replicas, to and from proto."""

from __future__ import annotations

from pagantic.common.v1 import error_pb2
from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2, replica_pb2
from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.codec.fields import EnumCodec, encode_optional
from pagantic_common.codec.messages import model_info_to_proto, usage_to_proto
from pagantic_common.domain.errors import PaganticError
from services.orchestrator.core.model.request import Reasoning, ReasoningMode
from services.orchestrator.core.model.response import FinishReason, TokenLogprob
from services.orchestrator.core.relevance import Reranked
from services.orchestrator.ports.services import TokenCount, Vectors
from services.orchestrator.ports.serving import ReplicaChange, ReplicaLoad, ReplicaReport, ServedModel

_BYTES = "latin-1"
_REASONS = EnumCodec(generation_pb2.FinishReason, FinishReason, "FINISH_REASON_", unknown=FinishReason.ERROR)
REASONING_MODES = EnumCodec(generation_pb2.ReasoningMode, ReasoningMode, "REASONING_MODE_", unknown=None)


def reasoning_to_proto(reasoning: Reasoning) -> generation_pb2.Reasoning:
    """Encode the reasoning settings of a model."""
    return generation_pb2.Reasoning(mode=REASONING_MODES.to_proto(reasoning.mode), max_tokens=reasoning.max_tokens)


def finish_reason_to_proto(reason: FinishReason | None) -> generation_pb2.FinishReason.ValueType:
    """Encode a finish reason, or leave it unset if it is None."""
    return _REASONS.to_proto(reason)


def finish_reason_from_proto(value: generation_pb2.FinishReason.ValueType) -> FinishReason:
    """Decode a finish reason, or return ERROR if the reason is unknown."""
    return _REASONS.from_proto(value)


def set_finish_reason_from_proto(value: generation_pb2.FinishReason.ValueType) -> FinishReason | None:
    """Decode an optional finish reason, or return None if it is unset."""
    if value == generation_pb2.FINISH_REASON_UNSPECIFIED:
        return None
    return _REASONS.from_proto(value)


def logprob_to_proto(logprob: TokenLogprob) -> generation_pb2.TokenLogprob:
    """Encode a token's log-probability and the log-probabilities of its alternatives."""
    return generation_pb2.TokenLogprob(
        token=logprob.token,
        piece=logprob.piece.encode(_BYTES),
        logprob=logprob.logprob,
        top=[logprob_to_proto(other) for other in logprob.top],
    )


def logprob_from_proto(logprob: generation_pb2.TokenLogprob) -> TokenLogprob:
    """Decode a token's log-probability and the log-probabilities of its alternatives."""
    top = tuple(logprob_from_proto(other) for other in logprob.top)
    return TokenLogprob(logprob.token, logprob.piece.decode(_BYTES), logprob.logprob, top)


def vectors_to_proto(vectors: Vectors) -> inference_service_pb2.EmbedResponse:
    """Encode embedding vectors."""
    encoded = [inference_service_pb2.Embedding(values=values) for values in vectors.values]
    return inference_service_pb2.EmbedResponse(embeddings=encoded, usage=usage_to_proto(vectors.usage))


def reranked_to_proto(reranked: Reranked) -> orchestrator_service_pb2.RerankResponse:
    """Encode reranked texts in the order of their relevance."""
    encoded = [
        orchestrator_service_pb2.RerankedText(index=text.index, relevance_score=text.relevance)
        for text in reranked.results
    ]
    return orchestrator_service_pb2.RerankResponse(results=encoded, usage=usage_to_proto(reranked.usage))


def token_count_to_proto(count: TokenCount) -> inference_service_pb2.CountTokensResponse:
    """Encode a token count."""
    return inference_service_pb2.CountTokensResponse(
        text_tokens=count.texts,
        chat_tokens=count.chat,
        context_window=count.context_window,
        is_estimate=count.is_estimate,
    )


def replica_to_proto(report: ReplicaReport) -> replica_pb2.Replica:
    """Encode a replica's report."""
    return replica_pb2.Replica(
        service=report.service,
        address=report.address,
        load=encode_optional(report.load, _load_to_proto),
        models=[model_info_to_proto(model.info) for model in report.models],
        states=map(_state_to_proto, report.models),
        error=encode_optional(report.error, _error_to_proto),
    )


def replica_change_to_proto(change: ReplicaChange) -> replica_pb2.ReplicaResult:
    """Encode the result of a change to a replica."""
    return replica_pb2.ReplicaResult(
        address=change.address, was_loaded=change.was_loaded, error=encode_optional(change.error, _error_to_proto)
    )


def _error_to_proto(error: PaganticError) -> error_pb2.SystemError:
    return failure_to_proto(error.failure)


def _load_to_proto(load: ReplicaLoad) -> inference_service_pb2.GetLoadResponse:
    return inference_service_pb2.GetLoadResponse(
        queued_requests=load.queued,
        queue_capacity=load.queue_capacity,
        running_sequences=load.running,
        sequence_capacity=load.sequence_capacity,
        kv_used_tokens=load.kv_used_tokens,
        kv_capacity_tokens=load.kv_capacity_tokens,
        output_tokens_total=load.output_tokens_total,
        pending_prompt_tokens=load.pending_prompt_tokens,
    )


def _state_to_proto(model: ServedModel) -> inference_service_pb2.ModelState:
    return inference_service_pb2.ModelState(
        is_loaded=model.is_loaded, memory_bytes=model.memory_bytes, running=model.running
    )
