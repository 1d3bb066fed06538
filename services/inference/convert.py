"""Converts between `pagantic.inference.v1` and the core's types. Rejects only messages that have no core value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic_common.codec.messages import (
    message_from_proto,
    model_info_to_proto,
    tool_call_to_proto,
    tool_choice_from_proto,
    tool_definition_from_proto,
    usage_to_proto,
)
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.models import ModelState
from services.inference.app.replica_watch import DEFAULT_INTERVAL_S, MAX_INTERVAL_S, MIN_INTERVAL_S, Report
from services.inference.app.scoring import BranchScores
from services.inference.app.tuning import Tuner
from services.inference.app.workload import Load
from services.inference.core.embedding import Vectors
from services.inference.core.generation import (
    CandidateEnd,
    ChatPrompt,
    Completed,
    Constraint,
    ConstraintKind,
    Delta,
    Event,
    FinishReason,
    InferenceRequest,
    PromptPrefixes,
    Reasoning,
    ReasoningMode,
    Sampling,
    ScoreBranch,
    Started,
    TokenLogprob,
    ToolCallDelta,
)

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_CONSTRAINT_KINDS = {
    "schema_json": ConstraintKind.SCHEMA,
    "gbnf": ConstraintKind.GBNF,
    "regex": ConstraintKind.REGEX,
    "engine_text": ConstraintKind.ENGINE_TEXT,
}
_REASONING_MODES: dict[int, ReasoningMode] = {
    generation_pb2.REASONING_MODE_UNSPECIFIED: ReasoningMode.AUTO,
    generation_pb2.REASONING_MODE_AUTO: ReasoningMode.AUTO,
    generation_pb2.REASONING_MODE_ON: ReasoningMode.ON,
    generation_pb2.REASONING_MODE_OFF: ReasoningMode.OFF,
}
_FINISH_REASONS = {reason: generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason}


def chat_prompt_from_proto(chat: generation_pb2.ChatPrompt) -> ChatPrompt:
    """Decode a conversation. Raises InvalidRequest if an enum value is unknown."""
    if chat.tool_choice.mode not in message_pb2.ToolChoiceMode.values():
        raise InvalidRequest(f"tool_choice.mode {chat.tool_choice.mode} is not known")
    for tool in chat.tools:
        if tool.safety not in message_pb2.ToolSafety.values():
            raise InvalidRequest(f"the safety {tool.safety} of tool {tool.name[:80]!r} is not known")
    return ChatPrompt(
        messages=tuple(message_from_proto(message) for message in chat.messages),
        tools=tuple(tool_definition_from_proto(tool) for tool in chat.tools),
        tool_choice=tool_choice_from_proto(chat.tool_choice),
    )


def sampling_from_proto(sampling: generation_pb2.Sampling) -> Sampling:
    """Decode the sampling parameters. Unset fields get the defaults."""
    fields = {name: value for name in _SAMPLING_FIELDS if (value := value_if_set(sampling, name)) is not None}
    return Sampling(**fields, logit_bias=dict(sampling.logit_bias), given=frozenset(fields))


def prompt_from_proto(
    request: inference_service_pb2.InferRequest | inference_service_pb2.ScoreRequest,
) -> ChatPrompt | str:
    """Decode a prompt. Raises InvalidRequest if there is no prompt."""
    match request.WhichOneof("prompt"):
        case None:
            raise InvalidRequest("prompt is not set: send chat or text")
        case "chat":
            return chat_prompt_from_proto(request.chat)
        case _:
            return request.text


def branches_from_proto(request: inference_service_pb2.ScoreRequest) -> list[ScoreBranch]:
    """Decode the endings of a prompt with their continuations."""
    return [ScoreBranch(branch.ending, tuple(branch.continuations)) for branch in request.branches]


def counted_chat_from_proto(request: inference_service_pb2.CountTokensRequest) -> ChatPrompt | None:
    """Decode the conversation to count, or return None if it is not set."""
    if not request.HasField("chat"):
        return None
    return chat_prompt_from_proto(request.chat)


def request_from_proto(request: inference_service_pb2.InferRequest) -> InferenceRequest:
    """Decode a request. Raises InvalidRequest if there is no prompt or an enum value is unknown."""
    return InferenceRequest(
        prompt=prompt_from_proto(request),
        sampling=sampling_from_proto(request.sampling),
        seed=value_if_set(request.sampling, "seed"),
        constraint=_constraint_from_proto(request.constraint),
        max_tokens=request.max_tokens,
        stop=tuple(request.stop),
        candidate_count=request.candidate_count or 1,
        top_logprobs=value_if_set(request, "top_logprobs"),
        priority=request.priority,
        reasoning=_reasoning_from_proto(request.reasoning),
        options_json=request.options_json,
        prefixes=_prefixes_from_proto(request.prefixes),
        said_tokens=tuple(request.said_tokens),
        reports_tokens=request.reports_tokens,
    )


def interval_from_proto(request: inference_service_pb2.WatchReplicaRequest) -> float:
    """Return the seconds between two reports. Raises InvalidRequest if the interval is out of range."""
    if not request.HasField("interval"):
        return DEFAULT_INTERVAL_S
    interval_s = request.interval.seconds + request.interval.nanos / 1e9
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        raise InvalidRequest(
            f"interval is {interval_s:g} s: it must be between {MIN_INTERVAL_S:g} and {MAX_INTERVAL_S:g} s"
        )
    return interval_s


def value_if_set(message: Message, field: str) -> Any:
    """Return the value of an optional field of a message, or None if it is not set."""
    if not message.HasField(field):
        return None
    return getattr(message, field)


def _reasoning_from_proto(reasoning: generation_pb2.Reasoning) -> Reasoning:
    mode = _REASONING_MODES.get(reasoning.mode)
    if mode is None:
        raise InvalidRequest(f"reasoning.mode {reasoning.mode} is not known")
    return Reasoning(mode, reasoning.max_tokens)


def _prefixes_from_proto(prefixes: generation_pb2.PromptPrefixes) -> PromptPrefixes:
    return PromptPrefixes(tuple(prefixes.keys), prefixes.block_bytes, prefixes.prompt_bytes)


def _constraint_from_proto(constraint: generation_pb2.DecoderConstraint) -> Constraint | None:
    source = constraint.WhichOneof("source")
    if source is None:
        return None
    return Constraint(_CONSTRAINT_KINDS[source], getattr(constraint, source))


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
                matched_stop=event.matched_stop if isinstance(event.matched_stop, str) else "",
                calls_held=event.calls_held,
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
    """Encode the load of the service."""
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
    """Encode the models and their states."""
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
    """Encode the tuning of the engine."""
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
    """Encode the scores of each branch's continuations."""
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
    """Encode vectors and their usage."""
    return inference_service_pb2.EmbedResponse(
        embeddings=[inference_service_pb2.Embedding(values=row.tolist()) for row in vectors],
        usage=usage_to_proto(usage),
    )
