"""Encodes the orchestrator's commands as the requests of the inference service."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic_common.codec.messages import message_to_proto, tool_choice_to_proto, tool_definition_to_proto
from pagantic_common.domain.messages import Message, ToolDefinition
from services.orchestrator.convert.inference import reasoning_to_proto
from services.orchestrator.core.execution.commands import Decide, Infer, Sample
from services.orchestrator.core.model.request import Hints

# Most labels in one call of Score.
MAX_LABELS = 8192


def decide_requests(command: Decide, hints: Hints) -> list[inference_service_pb2.ScoreRequest]:
    """Return the requests that cover all questions, with at most `MAX_LABELS` labels each."""
    chat = _chat(command.messages)
    requests: list[inference_service_pb2.ScoreRequest] = []
    labels = MAX_LABELS
    for question in command.questions:
        labels += len(question.labels)
        if labels > MAX_LABELS:
            requests.append(inference_service_pb2.ScoreRequest(model=hints.model, chat=chat))
            labels = len(question.labels)
        requests[-1].branches.add(ending=question.ending, continuations=question.labels)
    return requests


def score_request(command: Infer, hints: Hints, continuations: Sequence[str]) -> inference_service_pb2.ScoreRequest:
    """Return the request that weighs the beginnings of an answer."""
    chat = _chat(command.messages, command.tools)
    return inference_service_pb2.ScoreRequest(model=hints.model, chat=chat, continuations=continuations)


def infer_request(command: Infer, hints: Hints) -> inference_service_pb2.InferRequest:
    """Return the request for one answer."""
    request = _plain_request(hints, command.engine_text, command.seed)
    if command.text_prompt:
        request.text = command.text_prompt
    else:
        request.chat.CopyFrom(_chat(command.messages, command.tools))
        request.chat.tool_choice.CopyFrom(tool_choice_to_proto(command.tool_choice))
    if command.max_tokens:
        request.max_tokens = command.max_tokens
    if command.temperature is not None:
        request.sampling.temperature = command.temperature
    if hints.top_logprobs is not None:
        request.top_logprobs = hints.top_logprobs
    return request


def sample_request(command: Sample, hints: Hints) -> inference_service_pb2.InferRequest:
    """Return the request of several candidates."""
    request = _plain_request(hints, command.engine_text, command.seed)
    request.chat.CopyFrom(_chat(command.messages))
    request.sampling.temperature = command.temperature
    request.candidate_count = command.voting.n
    return request


def _chat(messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> generation_pb2.ChatPrompt:
    return generation_pb2.ChatPrompt(
        messages=[message_to_proto(message) for message in messages],
        tools=[tool_definition_to_proto(tool) for tool in tools],
    )


def _plain_request(hints: Hints, engine_text: str, seed: int | None) -> inference_service_pb2.InferRequest:
    """Return a request that has no prompt yet."""
    request = inference_service_pb2.InferRequest(
        model=hints.model,
        sampling=_sampling(hints, seed),
        max_tokens=hints.max_tokens,
        options_json=hints.options_json,
        stop=hints.stop,
        priority=hints.priority,
        reasoning=reasoning_to_proto(hints.reasoning),
    )
    if engine_text:
        request.constraint.engine_text = engine_text
    return request


def _sampling(hints: Hints, seed: int | None) -> generation_pb2.Sampling:
    sampling = generation_pb2.Sampling(
        temperature=hints.temperature, top_p=hints.top_p, seed=seed, logit_bias=dict(hints.logit_bias)
    )
    for name, value in hints.sampling.items():
        setattr(sampling, name, value)
    return sampling
