"""InferencePort over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

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
from pagantic_common.domain.errors import ErrorCode, Internal, Overloaded
from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.rpc.peer import Credentials, Peer, pass_on
from pagantic_common.rpc.waiting_line import Place, WaitingLine
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.convert.inference import finish_reason_from_proto, logprob_from_proto, reasoning_to_proto
from services.orchestrator.core.execution.commands import Decide, Infer, Sample
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import (
    CandidateOutput,
    InferenceDelta,
    InferenceOutput,
    TokenLogprob,
    ToolCallPiece,
)
from services.orchestrator.ports.services import PairScores, QuestionScores, Scores, TokenCount, Vectors

BUSY_RETRY_S = 2.0
MAX_LINES = 64  # one for each model, and callers may name any
COUNT_TIMEOUT_S = 10.0
# One call of Score weighs at most so many labels.
MAX_LABELS = 8192


@dataclass(slots=True)
class _Answer:
    """The output of one candidate so far."""

    contents: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    usage: TokenUsage = TokenUsage()
    model: str = ""
    seed: int | None = None
    end: inference_service_pb2.CandidateEnd | None = None

    def start(self, started: inference_service_pb2.InferenceStarted) -> InferenceDelta:
        self.model, self.seed = started.model.name, started.seed
        self.usage = TokenUsage(
            prompt_tokens=started.prompt_tokens,
            cached_prompt_tokens=started.cached_prompt_tokens,
            context_tokens=started.prompt_tokens,
            context_window=started.model.context_window,
        )
        return InferenceDelta(usage=self.usage, model=self.model, seed=self.seed)

    def another(self) -> _Answer:
        """Return another candidate of the same inference, without output."""
        return _Answer(model=self.model, seed=self.seed)

    def add(self, delta: inference_service_pb2.CandidateDelta) -> InferenceDelta:
        self.contents.append(delta.content)
        self.reasonings.append(delta.reasoning)
        self.logprobs += [logprob_from_proto(logprob) for logprob in delta.logprobs]
        context = self.usage.prompt_tokens + delta.output_tokens
        self.usage = replace(self.usage, output_tokens=delta.output_tokens, context_tokens=context)
        calls = tuple(ToolCallPiece(call.index, call.id, call.name, call.arguments_json) for call in delta.tool_calls)
        return InferenceDelta(delta.content, delta.reasoning, self.usage, self.model, self.seed, calls)

    def output(self, usage: TokenUsage) -> InferenceOutput:
        end = self.end or inference_service_pb2.CandidateEnd()
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
        )


def _no_room(waiting: int) -> Overloaded:
    return Overloaded(
        f"{waiting} inferences wait for room in the inference service: send the request again later",
        code=ErrorCode.INFERENCE_OVERLOADED,
        retry_after_s=BUSY_RETRY_S,
    )


class GrpcInference:
    """The inference service behind a channel."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        patience_s: float,
        busy_patience_s: float = 0.0,
        credentials: Credentials = pass_on,
    ) -> None:
        self._stub: inference_service_pb2_grpc.InferenceServiceAsyncStub = (
            inference_service_pb2_grpc.InferenceServiceStub(channel)
        )
        self._peer = Peer("inference", channel, patience_s=patience_s, credentials=credentials)
        self._busy_patience_s = busy_patience_s
        self._lines: dict[tuple[str, str], WaitingLine] = {}
        self._windows: dict[str, int] = {}

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        """Count the tokens of a conversation, 0 for none, and of each text."""
        request = inference_service_pb2.CountTokensRequest(model=model, texts=texts)
        if messages:
            request.chat.messages.extend(message_to_proto(message) for message in messages)
            request.chat.tools.extend(tool_definition_to_proto(tool) for tool in tools)
        reply = await self._peer.call_unary(self._stub.CountTokens, request, COUNT_TIMEOUT_S)
        self._windows[model] = reply.context_window
        return TokenCount(reply.chat_tokens, tuple(reply.text_tokens), reply.context_window, reply.is_estimate)

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the models that are served, the default one first."""
        reply = await self._peer.call_unary(
            self._stub.ListModels, inference_service_pb2.ListModelsRequest(), COUNT_TIMEOUT_S
        )
        return [model_info_from_proto(model) for model in reply.models]

    def context_window(self, model: str) -> int:
        """Return the last known context window of the model; 0 when unknown."""
        return self._windows.get(model, 0)

    async def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        """Stream the model's text, then the whole output."""
        answer = _Answer()
        async with self._responses(_request(command, hints)) as responses:
            async for response in responses:
                match response.WhichOneof("event"):
                    case "started":
                        self._windows[hints.model] = response.started.model.context_window
                        yield answer.start(response.started)
                    case "delta":
                        yield answer.add(response.delta)
                    case "candidate_end":
                        answer.end = response.candidate_end
                    case "completed" if answer.end is not None:
                        yield answer.output(usage_from_proto(response.completed.usage))
                        return
        raise Internal("the inference stream ended early", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)

    @asynccontextmanager
    async def _responses(
        self, request: inference_service_pb2.InferRequest
    ) -> AsyncIterator[AsyncIterator[inference_service_pb2.InferResponse]]:
        """Call Infer; a call that finds no room waits in line for it, within the patience."""
        line = self._line_of(request.model)
        place = Place(line, ErrorCode.INFERENCE_OVERLOADED, self._busy_patience_s)
        waiting = len(line)
        if not await place.wait():
            raise _no_room(waiting)
        try:
            async with aclosing(self._peer.call_stream(self._stub.Infer, request, place=place)) as responses:
                yield responses
        finally:
            place.leave()

    def _line_of(self, model: str) -> WaitingLine:
        """Return the line of a model and tenant: one that has no room holds up no other."""
        if len(self._lines) >= MAX_LINES:
            self._lines = {place: line for place, line in self._lines.items() if line}
        return self._lines.setdefault((model, current_principal().tenant), WaitingLine())

    async def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Yield the prompt's usage, each candidate with its own usage as it ends, then the usage of all."""
        answers: dict[int, _Answer] = {}
        first = _Answer()
        request = _sample_request(command, hints)
        async with self._responses(request) as responses:
            async for response in responses:
                match response.WhichOneof("event"):
                    case "started":
                        self._windows[hints.model] = response.started.model.context_window
                        first.start(response.started)
                        yield first.usage
                    case "delta":
                        index = response.delta.candidate_index
                        answers.setdefault(index, first.another()).add(response.delta)
                    case "candidate_end":
                        end = response.candidate_end
                        answer = answers.setdefault(end.candidate_index, first.another())
                        answer.end = end
                        usage = TokenUsage(output_tokens=end.output_tokens)
                        yield CandidateOutput(end.candidate_index, answer.output(usage))
                    case "completed":
                        yield usage_from_proto(response.completed.usage)
                        return
        raise Internal("the inference stream ended early", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        """Return how probable each beginning of the answer is."""
        reply = await self._peer.call_unary(self._stub.Score, _score_request(command, hints, continuations))
        return Scores(tuple(score.logprob for score in reply.scores), usage_from_proto(reply.usage))

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        """Ask for all questions; those with very many labels together in several calls, which share the cache."""
        replies = [
            await self._peer.call_unary(self._stub.Score, request) for request in _decide_requests(command, hints)
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


def _decide_requests(command: Decide, hints: Hints) -> list[inference_service_pb2.ScoreRequest]:
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


def _score_request(command: Infer, hints: Hints, continuations: Sequence[str]) -> inference_service_pb2.ScoreRequest:
    chat = _chat(command.messages, command.tools)
    return inference_service_pb2.ScoreRequest(model=hints.model, chat=chat, continuations=continuations)


def _request(command: Infer, hints: Hints) -> inference_service_pb2.InferRequest:
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


def _sample_request(command: Sample, hints: Hints) -> inference_service_pb2.InferRequest:
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
