"""Encodes the app's results as the responses of `pagantic.inference.v1`."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic_common.codec.messages import (
    model_info_to_proto,
    tool_call_to_proto,
    usage_to_proto,
)
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.models import ModelState
from services.inference.app.scoring import BranchScores
from services.inference.app.tuning import Tuner
from services.inference.app.watching.replica_watch import Report
from services.inference.app.workload import Load
from services.inference.core.embedding import Vectors
from services.inference.core.generation import (
    CandidateEnd,
    Completed,
    Delta,
    Event,
    FinishReason,
    Started,
    TokenLogprob,
    ToolCallDelta,
)

_FINISH_REASONS = {reason: generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}


def event_to_proto(event: Event) -> inference_service_pb2.InferResponse:
    """Encode an event."""
    match event:
        case Started():
            started = inference_service_pb2.InferenceStarted(
                model=model_info_to_proto(event.model),
                prompt_tokens=event.prompt_tokens,
                cached_prompt_tokens=event.cached_prompt_tokens,
                seed=event.seed,
                inference_id=event.inference_id,
            )
            return inference_service_pb2.InferResponse(started=started)
        case Delta():
            delta = inference_service_pb2.CandidateDelta(
                candidate_index=event.candidate_index,
                content=event.content,
                reasoning=event.reasoning,
                tool_calls=[_tool_call_delta_to_proto(call) for call in event.tool_calls],
                logprobs=[_logprob_to_proto(logprob) for logprob in event.logprobs],
                output_tokens=event.output_tokens,
                tokens=event.tokens,
            )
            return inference_service_pb2.InferResponse(delta=delta)
        case CandidateEnd():
            end = inference_service_pb2.CandidateEnd(
                candidate_index=event.candidate_index,
                finish_reason=_FINISH_REASONS[event.finish_reason],
                tool_calls=[tool_call_to_proto(call) for call in event.tool_calls],
                output_tokens=event.output_tokens,
                constraint_satisfied=event.constraint_satisfied,
            )
            return inference_service_pb2.InferResponse(candidate_end=end)
        case Completed():
            completed = inference_service_pb2.InferenceCompleted(
                usage=usage_to_proto(event.usage), computed_tokens=event.computed_tokens
            )
            return inference_service_pb2.InferResponse(completed=completed)


def _tool_call_delta_to_proto(call: ToolCallDelta) -> generation_pb2.ToolCallDelta:
    return generation_pb2.ToolCallDelta(
        index=call.index, id=call.id, name=call.name, arguments_json=call.arguments_json
    )


def _logprob_to_proto(logprob: TokenLogprob) -> generation_pb2.TokenLogprob:
    return generation_pb2.TokenLogprob(
        token=logprob.token,
        piece=logprob.piece,
        logprob=logprob.logprob,
        top=[_logprob_to_proto(other) for other in logprob.top],
    )


def load_to_proto(load: Load) -> inference_service_pb2.GetLoadResponse:
    """Encode how busy the service is."""
    return inference_service_pb2.GetLoadResponse(
        queued_requests=load.queued_requests,
        queue_capacity=load.queue_capacity,
        running_sequences=load.running_sequences,
        sequence_capacity=load.sequence_capacity,
        kv_used_tokens=load.kv_used_tokens,
        kv_capacity_tokens=load.kv_capacity_tokens,
        output_tokens_total=load.output_tokens_total,
        pending_prompt_tokens=load.pending_prompt_tokens,
    )


def models_to_proto(
    infos: Sequence[ModelInfo], states: Sequence[ModelState]
) -> inference_service_pb2.ListModelsResponse:
    """Encode the models and the state of each."""
    reply = inference_service_pb2.ListModelsResponse(models=map(model_info_to_proto, infos))
    for state in states:
        reply.states.add(is_loaded=state.is_loaded, memory_bytes=state.memory_bytes, running=state.running)
    return reply


def report_to_proto(report: Report) -> inference_service_pb2.WatchReplicaResponse:
    """Encode a report to a watcher."""
    return inference_service_pb2.WatchReplicaResponse(
        load=load_to_proto(report.load), added_keys=report.added, removed_keys=report.removed
    )


def tuner_to_proto(tuner: Tuner, loaded: Sequence[str]) -> inference_service_pb2.DescribeEngineResponse:
    """Encode how the engine runs."""
    reply = inference_service_pb2.DescribeEngineResponse(loaded_models=loaded, note=tuner.note)
    for choice in tuner.tuning.choices:
        reply.choices.add(name=choice.name, value=choice.value, reason=choice.reason)
    reply.state = inference_service_pb2.TuningState.Value(f"TUNING_STATE_{tuner.state.name}")
    if tuner.tuning.measured_at:
        reply.measured_at.FromJsonString(tuner.tuning.measured_at)
        reply.other_load_cores = tuner.tuning.others_cores
    return reply


def score_response_to_proto(
    scores: BranchScores, usage: TokenUsage, model: ModelInfo
) -> inference_service_pb2.ScoreResponse:
    """Encode the scores of a prompt's continuations."""
    return inference_service_pb2.ScoreResponse(
        scores=_scores_to_proto(scores), usage=usage_to_proto(usage), model=model_info_to_proto(model)
    )


def branches_response_to_proto(
    branches: Sequence[BranchScores], usage: TokenUsage, model: ModelInfo
) -> inference_service_pb2.ScoreResponse:
    """Encode the scores of the continuations of each branch."""
    return inference_service_pb2.ScoreResponse(
        branches=[inference_service_pb2.BranchScores(scores=_scores_to_proto(scores)) for scores in branches],
        usage=usage_to_proto(usage),
        model=model_info_to_proto(model),
    )


def _scores_to_proto(scores: BranchScores) -> list[inference_service_pb2.ContinuationScore]:
    return [
        inference_service_pb2.ContinuationScore(
            logprob=sum(token.logprob for token in score), tokens=[_logprob_to_proto(token) for token in score]
        )
        for score in scores
    ]


def embed_response_to_proto(vectors: Vectors, usage: TokenUsage) -> inference_service_pb2.EmbedResponse:
    """Encode vectors."""
    return inference_service_pb2.EmbedResponse(
        embeddings=[inference_service_pb2.Embedding(values=row.tolist()) for row in vectors],
        usage=usage_to_proto(usage),
    )
