"""Reads the responses of Infer: the text as it comes, then the whole output."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic_common.codec.messages import tool_call_from_proto, usage_from_proto
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.convert.inference import finish_reason_from_proto, logprob_from_proto
from services.orchestrator.core.model.response import (
    CandidateOutput,
    InferenceDelta,
    InferenceOutput,
    TokenLogprob,
    ToolCallPiece,
)
from services.orchestrator.core.text_size import byte_size, encoded_bound

MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES // 2

OpenedResponses: TypeAlias = AbstractAsyncContextManager[AsyncIterator[inference_service_pb2.InferResponse]]


@dataclass(slots=True)
class _Answer:
    """The output of one candidate so far, limited to `max_bytes`.

    Output beyond the limit sets `is_cut`, and later pieces are dropped: a short piece would otherwise follow a gap.
    """

    max_bytes: int
    contents: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    usage: TokenUsage = TokenUsage()
    model: str = ""
    seed: int | None = None
    end: inference_service_pb2.CandidateEnd | None = None
    size: int = 0  # This counts bytes, and the calls have a size of their own.
    call_size: int = 0
    is_cut: bool = False

    def start(self, started: inference_service_pb2.InferenceStarted) -> InferenceDelta:
        if self.model:  # Another replica continues the answer.
            tokens = self.usage.output_tokens
            return InferenceDelta(usage=self.usage, model=self.model, seed=self.seed, continued_after_tokens=tokens)
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
        return _Answer(self.max_bytes, model=self.model, seed=self.seed)

    def add(self, delta: inference_service_pb2.CandidateDelta) -> InferenceDelta:
        """Add the next piece, cut to the space left; a piece with log-probabilities is added whole or not at all."""
        content, reasoning = delta.content, delta.reasoning
        logprobs = [logprob_from_proto(logprob) for logprob in delta.logprobs]
        self.call_size += sum(byte_size(call.arguments_json) for call in delta.tool_calls)
        left = 0 if self.is_cut else self.max_bytes - self.size - self.call_size
        self.is_cut = self.is_cut or byte_size(content) + byte_size(reasoning) + encoded_bound(logprobs) > left
        if self.is_cut:
            left = 0 if logprobs else left
            content, logprobs = _beginning(content, left - byte_size(reasoning)), []
            reasoning = _beginning(reasoning, left)
        self.size += byte_size(content) + byte_size(reasoning) + encoded_bound(logprobs)
        self.contents.append(content)
        self.reasonings.append(reasoning)
        self.logprobs += logprobs
        context = self.usage.prompt_tokens + delta.output_tokens
        self.usage = replace(self.usage, output_tokens=delta.output_tokens, context_tokens=context)
        calls = tuple(ToolCallPiece(call.index, call.id, call.name, call.arguments_json) for call in delta.tool_calls)
        return InferenceDelta(content, reasoning, self.usage, self.model, self.seed, calls)

    def finish(self, end: inference_service_pb2.CandidateEnd) -> None:
        """Take the end, with the calls; an engine need not have streamed them."""
        self.end = end
        self.call_size = sum(byte_size(call.arguments_json) for call in end.tool_calls)
        self.is_cut = self.is_cut or self.size + self.call_size > self.max_bytes

    def output(self, usage: TokenUsage) -> InferenceOutput:
        """Return the whole output, without tool calls if it was cut: they would be incomplete."""
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
        )


def _beginning(text: str, max_bytes: int) -> str:
    """Return as many whole characters of a text as fit."""
    if max_bytes <= 0:
        return ""
    return text.encode()[:max_bytes].decode(errors="ignore")


async def read_answer(
    opened: OpenedResponses, note_window: Callable[[int], None], max_bytes: int = MAX_ANSWER_BYTES
) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
    """Yield the text of the only candidate, then the whole output; `note_window` gets the model's context window.

    An answer that grows beyond `max_bytes` is stopped there.
    Raises Internal (INFERENCE_MALFORMED_RESPONSE) for a stream that ends early.
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
    """Yield the prompt's usage, each candidate with its own usage as it ends, then the usage of all.

    Of a candidate that grows beyond `max_bytes` the rest is left out; it cannot be stopped alone.
    Raises Internal (INFERENCE_MALFORMED_RESPONSE) for a stream that ends early.
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
