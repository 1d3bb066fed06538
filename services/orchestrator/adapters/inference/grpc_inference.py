"""Implements InferencePort over gRPC: turns commands into requests, and responses into outputs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import grpc

from pagantic.inference.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.codec.messages import (
    message_to_proto,
    model_info_from_proto,
    tool_call_from_proto,
    tool_choice_to_proto,
    tool_definition_to_proto,
    usage_from_proto,
)
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.rpc.peer import Credentials, Peer, pass_on
from services.orchestrator.adapters.inference.replica_set import ReplicaSet
from services.orchestrator.adapters.inference.routed_calls import RoutedCalls
from services.orchestrator.convert.inference import finish_reason_from_proto, logprob_from_proto, reasoning_to_proto
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import (
    CandidateOutput,
    InferenceDelta,
    InferenceOutput,
    TokenLogprob,
    ToolCallPiece,
)
from services.orchestrator.core.text_size import byte_size, encoded_bound
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample
from services.orchestrator.ports.services import PairScores, QuestionScores, Scores, TokenCount, Vectors

MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES // 2
_REMOTE = "remote"  # the capability of a model that another system runs

OpenedResponses: TypeAlias = AbstractAsyncContextManager[AsyncIterator[inference_service_pb2.InferResponse]]
# Maximum number of labels in one call of Score.
MAX_LABELS = 8192
COUNT_TIMEOUT_S = 10.0
COUNT_ANSWER_S = 3.0  # Beyond this time, another replica is asked.


class GrpcInference:
    """Client of the inference service, and of each of its replicas through a separate channel."""

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
        """Count the tokens of a conversation and of each text. An empty conversation has 0 tokens."""
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
        """Return the last known context window of the model, or 0 if it is unknown."""
        return self._windows.get(model, 0)

    def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        """Stream the model's text, then the whole output."""
        note_window = partial(self._windows.__setitem__, hints.model)
        return read_answer(self._calls.responses(infer_request(command, hints)), note_window, self._max_answer_bytes)

    def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Yield the prompt's usage, then each ended candidate with its usage, then the total usage."""
        note_window = partial(self._windows.__setitem__, hints.model)
        return read_candidates(
            self._calls.responses(sample_request(command, hints)), note_window, self._max_answer_bytes
        )

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        """Return the log-probability of each possible prefix of the answer."""
        reply = await self._peer.call_unary(self._stub.Score, score_request(command, hints, continuations))
        return Scores(tuple(score.logprob for score in reply.scores), usage_from_proto(reply.usage))

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        """Score all questions. Several calls share the prefix cache if there are many labels."""
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
        """Return the relevance of each text to a query."""
        request = inference_service_pb2.ScorePairsRequest(model=model, query=query, texts=texts)
        reply = await self._peer.call_unary(self._stub.ScorePairs, request)
        return PairScores(tuple(reply.scores), usage_from_proto(reply.usage))


def decide_requests(command: Decide, hints: Hints) -> list[inference_service_pb2.ScoreRequest]:
    """Return requests that together cover all questions, each with at most `MAX_LABELS` labels."""
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
    """Return the request that scores the possible prefixes of an answer."""
    chat = _chat(command.messages, command.tools)
    return inference_service_pb2.ScoreRequest(model=hints.model, chat=chat, continuations=continuations)


def infer_request(command: Infer, hints: Hints) -> inference_service_pb2.InferRequest:
    """Return the request for a single answer."""
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
    """Return the request for several candidates."""
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
    """Return a request without a prompt."""
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


@dataclass(slots=True)
class _Answer:
    """The output of one candidate so far, limited to `max_bytes`.

    Output beyond the limit sets `is_cut`. Later pieces are dropped even if they would fit, because they would follow a
    gap.
    """

    max_bytes: int
    contents: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    usage: TokenUsage = TokenUsage()
    model: str = ""
    seed: int | None = None
    end: inference_service_pb2.CandidateEnd | None = None
    size: int = 0  # This size is in bytes and excludes tool calls, whose size is counted separately.
    call_size: int = 0
    is_cut: bool = False

    def start(self, started: inference_service_pb2.InferenceStarted) -> InferenceDelta:
        if self.model:  # Another replica is continuing the answer.
            tokens = self.usage.output_tokens
            return InferenceDelta(usage=self.usage, model=self.model, seed=self.seed, continued_after_tokens=tokens)
        self.model, self.seed = started.model.name, started.seed
        self.usage = TokenUsage(
            prompt_tokens=started.prompt_tokens,
            cached_prompt_tokens=started.cached_prompt_tokens,
            context_tokens=started.prompt_tokens,
            context_window=started.model.context_window,
        )
        is_remote = _REMOTE in started.model.capabilities
        return InferenceDelta(usage=self.usage, model=self.model, seed=self.seed, is_remote=is_remote)

    def another(self) -> _Answer:
        """Return an empty answer for another candidate of the same inference."""
        return _Answer(self.max_bytes, model=self.model, seed=self.seed)

    def add(self, delta: inference_service_pb2.CandidateDelta) -> InferenceDelta:
        """Add the next piece, cut to the remaining space. A piece with log-probabilities is added whole or dropped."""
        content, reasoning = delta.content, delta.reasoning
        logprobs = [logprob_from_proto(logprob) for logprob in delta.logprobs]
        self.call_size += sum(byte_size(call.arguments_json) for call in delta.tool_calls)
        remaining_bytes = 0 if self.is_cut else self.max_bytes - self.size - self.call_size
        self.is_cut = (
            self.is_cut or byte_size(content) + byte_size(reasoning) + encoded_bound(logprobs) > remaining_bytes
        )
        if self.is_cut:
            remaining_bytes = 0 if logprobs else remaining_bytes
            content, logprobs = _beginning(content, remaining_bytes - byte_size(reasoning)), []
            reasoning = _beginning(reasoning, remaining_bytes)
        self.size += byte_size(content) + byte_size(reasoning) + encoded_bound(logprobs)
        self.contents.append(content)
        self.reasonings.append(reasoning)
        self.logprobs += logprobs
        context = self.usage.prompt_tokens + delta.output_tokens
        self.usage = replace(self.usage, output_tokens=delta.output_tokens, context_tokens=context)
        calls = tuple(ToolCallPiece(call.index, call.id, call.name, call.arguments_json) for call in delta.tool_calls)
        return InferenceDelta(content, reasoning, self.usage, self.model, self.seed, calls)

    def finish(self, end: inference_service_pb2.CandidateEnd) -> None:
        """Store the end of the candidate with its tool calls, because some engines do not stream the calls."""
        self.end = end
        self.call_size = sum(byte_size(call.arguments_json) for call in end.tool_calls)
        self.is_cut = self.is_cut or self.size + self.call_size > self.max_bytes

    def output(self, usage: TokenUsage) -> InferenceOutput:
        """Return the whole output. The tool calls of a cut output are omitted, because they would be incomplete."""
        end = self.end or inference_service_pb2.CandidateEnd()
        if self.is_cut:
            end = inference_service_pb2.CandidateEnd(finish_reason=generation_pb2.FINISH_REASON_LENGTH)
        return InferenceOutput(
            content="".join(self.contents),
            finish_reason=finish_reason_from_proto(end.finish_reason),
            tool_calls=tuple(tool_call_from_proto(call) for call in end.tool_calls),
            constraint_satisfied=end.constraint_satisfied,
            usage=usage,
            reasoning="".join(self.reasonings),
            model=self.model,
            seed=self.seed,
            logprobs=tuple(self.logprobs),
            max_bytes=self.max_bytes if self.is_cut else 0,
            matched_stop=end.matched_stop,
            calls_held=end.calls_held,
        )


def _beginning(text: str, max_bytes: int) -> str:
    """Return the longest prefix of a text that fits and does not split a character."""
    if max_bytes <= 0:
        return ""
    return text.encode()[:max_bytes].decode(errors="ignore")


async def read_answer(
    opened: OpenedResponses, note_window: Callable[[int], None], max_bytes: int = MAX_ANSWER_BYTES
) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
    """Yield the text of the only candidate, then the whole output.

    Calls `note_window` with the model's context window. An answer is stopped when it exceeds `max_bytes`.
    Raises Internal (INFERENCE_MALFORMED_RESPONSE) if the stream ends early.
    """
    answer = _Answer(max_bytes)
    async with opened as responses:
        async for response in responses:
            match response.WhichOneof("event"):
                case "started":
                    note_window(response.started.model.context_window)
                    yield answer.start(response.started)
                case "delta":
                    yield answer.add(response.delta)
                case "candidate_end":
                    answer.finish(response.candidate_end)
                case "completed" if answer.end is not None:
                    yield answer.output(usage_from_proto(response.completed.usage))
                    return
            if answer.is_cut and answer.end is None:
                yield answer.output(answer.usage)
                return
    raise _ended_early()


async def read_candidates(
    opened: OpenedResponses, note_window: Callable[[int], None], max_bytes: int = MAX_ANSWER_BYTES
) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
    """Yield the prompt's usage, then each ended candidate with its usage, then the total usage.

    A candidate's output beyond `max_bytes` is dropped, because a single candidate cannot be stopped.
    Raises Internal (INFERENCE_MALFORMED_RESPONSE) if the stream ends early.
    """
    answers: dict[int, _Answer] = {}
    first = _Answer(max_bytes)
    async with opened as responses:
        async for response in responses:
            match response.WhichOneof("event"):
                case "started" if not first.model:
                    note_window(response.started.model.context_window)
                    first.start(response.started)
                    yield first.usage
                case "delta":
                    index = response.delta.candidate_index
                    answers.setdefault(index, first.another()).add(response.delta)
                case "candidate_end":
                    end = response.candidate_end
                    answer = answers.setdefault(end.candidate_index, first.another())
                    answer.finish(end)
                    usage = TokenUsage(output_tokens=end.output_tokens)
                    yield CandidateOutput(end.candidate_index, answer.output(usage))
                case "completed":
                    yield usage_from_proto(response.completed.usage)
                    return
    raise _ended_early()


def _ended_early() -> Internal:
    return Internal("the inference stream ended early", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)
