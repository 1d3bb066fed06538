"""Between `pagantic.inference.v1` and the core's types."""

from __future__ import annotations

from collections.abc import Sequence

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
from pagantic_common.domain.ids import check_tool_name
from pagantic_common.domain.json_text import JsonTextError, parse_json
from pagantic_common.domain.messages import check_message
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.scoring import Score
from services.inference.app.tuning import Tuner
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
    Reasoning,
    ReasoningMode,
    Sampling,
    Started,
    TokenLogprob,
    ToolCallDelta,
)

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_PRIORITY = 10
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024
MAX_LOGIT_BIAS = 100

_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.1, 2.0),  # divides logits: a number near 0 makes them infinite
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_MUST_BE_POSITIVE = ("top_p",)
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
    """Decode a conversation; raises InvalidRequest for malformed messages."""
    messages = tuple(message_from_proto(message) for message in chat.messages)
    if not messages:
        raise InvalidRequest("chat.messages is empty")
    for position, message in enumerate(messages):
        check_message(message, position)
    if chat.tool_choice.mode not in message_pb2.ToolChoiceMode.values():
        raise InvalidRequest(f"tool_choice.mode {chat.tool_choice.mode} is not known")
    names: set[str] = set()
    for tool in chat.tools:
        if tool.safety not in message_pb2.ToolSafety.values():
            raise InvalidRequest(f"the safety {tool.safety} of tool {tool.name[:80]!r} is not known")
        check_tool_name(tool.name)
        if tool.name in names:
            raise InvalidRequest(f"two tools are named {tool.name!r}")
        names.add(tool.name)
        _check_parameters(tool.name, tool.parameters_json)
    return ChatPrompt(
        messages=messages,
        tools=tuple(tool_definition_from_proto(tool) for tool in chat.tools),
        tool_choice=tool_choice_from_proto(chat.tool_choice),
    )


def _check_parameters(tool_name: str, text: str) -> None:
    try:
        schema = parse_json(text, is_rewritable=True) if text else {}
    except JsonTextError as error:
        raise InvalidRequest(f"the parameters of tool {tool_name!r} are not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"the parameters of tool {tool_name!r} are not a JSON object")


def sampling_from_proto(sampling: generation_pb2.Sampling) -> Sampling:
    """Decode sampling; raises InvalidRequest for a value out of its range."""
    values = {}
    for name, (low, high) in _RANGES.items():
        if not sampling.HasField(name):  # type: ignore[arg-type]
            continue
        value = getattr(sampling, name)
        if not low <= value <= high or (name in _MUST_BE_POSITIVE and value <= 0):
            raise InvalidRequest(f"sampling.{name} is {value}: it must be between {low} and {high}")
        values[name] = value
    bias = dict(sampling.logit_bias)
    if negative := [token for token in bias if token < 0]:
        raise InvalidRequest(f"sampling.logit_bias names token {negative[0]}: ids begin at 0")
    if len(bias) > MAX_BIASED_TOKENS or not all(abs(value) <= MAX_LOGIT_BIAS for value in bias.values()):
        raise InvalidRequest(
            f"sampling.logit_bias takes at most {MAX_BIASED_TOKENS} tokens, each at most {MAX_LOGIT_BIAS} up or down"
        )
    return Sampling(**values, logit_bias=bias)


def prompt_from_proto(
    request: inference_service_pb2.InferRequest | inference_service_pb2.ScoreRequest,
) -> ChatPrompt | str:
    """Decode a prompt; raises InvalidRequest when there is none."""
    match request.WhichOneof("prompt"):
        case None:
            raise InvalidRequest("prompt is not set: send chat or text")
        case "chat":
            return chat_prompt_from_proto(request.chat)
        case _:
            return request.text


def request_from_proto(request: inference_service_pb2.InferRequest, *, max_priority: int = 0) -> InferenceRequest:
    """Decode a request; raises InvalidRequest for a field out of its range."""
    if not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs is {request.top_logprobs}: it must be between 0 and {MAX_TOP_LOGPROBS}")
    if request.max_tokens < 0:
        raise InvalidRequest(f"max_tokens is {request.max_tokens}: it must not be negative")
    if not -MAX_PRIORITY <= request.priority <= max_priority:
        raise InvalidRequest(
            f"priority is {request.priority}: it must be between -{MAX_PRIORITY} and {max_priority}, which "
            "PAGANTIC_INFERENCE_MAX_PRIORITY sets"
        )
    if len(request.stop) > MAX_STOP_STRINGS or any(not 0 < len(s.encode()) <= MAX_STOP_BYTES for s in request.stop):
        raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_BYTES} bytes each")
    _check_options(request.options_json)
    return InferenceRequest(
        prompt=prompt_from_proto(request),
        sampling=sampling_from_proto(request.sampling),
        seed=request.sampling.seed if request.sampling.HasField("seed") else None,
        constraint=_constraint_from_proto(request.constraint),
        max_tokens=request.max_tokens,
        stop=tuple(request.stop),
        candidate_count=request.candidate_count or 1,
        top_logprobs=request.top_logprobs if request.HasField("top_logprobs") else None,
        priority=request.priority,
        reasoning=_reasoning_from_proto(request.reasoning),
    )


def _reasoning_from_proto(reasoning: generation_pb2.Reasoning) -> Reasoning:
    mode = _REASONING_MODES.get(reasoning.mode)
    if mode is None:
        raise InvalidRequest(f"reasoning.mode {reasoning.mode} is not known")
    if reasoning.max_tokens < 0:
        raise InvalidRequest(f"reasoning.max_tokens is {reasoning.max_tokens}: it must not be negative")
    return Reasoning(mode, reasoning.max_tokens)


def _constraint_from_proto(constraint: generation_pb2.DecoderConstraint) -> Constraint | None:
    source = constraint.WhichOneof("source")
    return None if source is None else Constraint(_CONSTRAINT_KINDS[source], getattr(constraint, source))


def _check_options(text: str) -> None:
    try:
        options = parse_json(text) if text else {}
    except JsonTextError as error:
        raise InvalidRequest(f"options_json is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise InvalidRequest("options_json is not a JSON object")
    if options:
        raise InvalidRequest(f"this engine has no option {next(iter(options))!r}")


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


def tuner_to_proto(tuner: Tuner | None, loaded: Sequence[str]) -> inference_service_pb2.DescribeEngineResponse:
    """Encode how the engine runs."""
    reply = inference_service_pb2.DescribeEngineResponse(loaded_models=loaded)
    if tuner is None:
        return reply
    for choice in tuner.tuning.choices:
        reply.choices.add(name=choice.name, value=choice.value, reason=choice.reason)
    reply.state = inference_service_pb2.TuningState.Value(f"TUNING_STATE_{tuner.state.name}")
    reply.note = tuner.note
    if tuner.tuning.measured_at:
        reply.measured_at.FromJsonString(tuner.tuning.measured_at)
        reply.other_load_cores = tuner.tuning.others_cores
    return reply


def score_response_to_proto(scores: Sequence[Score], usage: TokenUsage) -> inference_service_pb2.ScoreResponse:
    """Encode scores."""
    return inference_service_pb2.ScoreResponse(
        scores=[
            inference_service_pb2.ContinuationScore(
                logprob=sum(token.logprob for token in score.tokens),
                tokens=[_logprob_to_proto(token) for token in score.tokens],
            )
            for score in scores
        ],
        usage=usage_to_proto(usage),
    )


def embed_response_to_proto(vectors: Vectors, usage: TokenUsage) -> inference_service_pb2.EmbedResponse:
    """Encode vectors."""
    return inference_service_pb2.EmbedResponse(
        embeddings=[inference_service_pb2.Embedding(values=row.tolist()) for row in vectors],
        usage=usage_to_proto(usage),
    )
