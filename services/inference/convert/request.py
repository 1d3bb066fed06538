"""Decodes the requests of `pagantic.inference.v1`. Refuses only what the core's types cannot hold."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic_common.codec.messages import (
    message_from_proto,
    tool_choice_from_proto,
    tool_definition_from_proto,
)
from pagantic_common.domain.errors import InvalidRequest
from services.inference.app.watching.replica_watch import DEFAULT_INTERVAL_S, MAX_INTERVAL_S, MIN_INTERVAL_S
from services.inference.core.generation import (
    ChatPrompt,
    Constraint,
    ConstraintKind,
    InferenceRequest,
    PromptPrefixes,
    Reasoning,
    ReasoningMode,
    Sampling,
    ScoreBranch,
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


def chat_prompt_from_proto(chat: generation_pb2.ChatPrompt) -> ChatPrompt:
    """Decode a conversation; raises InvalidRequest for a number that its enum does not have."""
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
    """Decode sampling; fields that are not set have the defaults."""
    given = {name: value for name in _SAMPLING_FIELDS if (value := value_if_set(sampling, name)) is not None}
    return Sampling(**given, logit_bias=dict(sampling.logit_bias), given=frozenset(given))


def prompt_from_proto(
    request: inference_service_pb2.InferRequest | inference_service_pb2.ScoreRequest,
) -> ChatPrompt | str:
    """Decode a prompt; raises InvalidRequest without a prompt."""
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
    """Decode the conversation to count; None if it is not set."""
    if not request.HasField("chat"):
        return None
    return chat_prompt_from_proto(request.chat)


def request_from_proto(request: inference_service_pb2.InferRequest) -> InferenceRequest:
    """Decode a request; raises InvalidRequest without a prompt, or for a number that its enum does not have."""
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
    """Return the seconds between two reports; raises InvalidRequest for a time that is out of range."""
    if not request.HasField("interval"):
        return DEFAULT_INTERVAL_S
    interval_s = request.interval.seconds + request.interval.nanos / 1e9
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        raise InvalidRequest(
            f"interval is {interval_s:g} s: it must be between {MIN_INTERVAL_S:g} and {MAX_INTERVAL_S:g} s"
        )
    return interval_s


def value_if_set(message: Message, field: str) -> Any:
    """Return an optional field of a message; None if it is not set."""
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
