"""Reads the responses of Infer: the text as it comes, then the whole output."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pagantic.inference.v1 import inference_service_pb2
from pagantic_common.codec.messages import tool_call_from_proto, usage_from_proto
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

OpenedResponses: TypeAlias = AbstractAsyncContextManager[AsyncIterator[inference_service_pb2.InferResponse]]


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


async def read_answer(
    opened: OpenedResponses, note_window: Callable[[int], None]
) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
    """Yield the text of the only candidate, then the whole output; `note_window` gets the model's context window.

    Raises Internal (INFERENCE_MALFORMED_RESPONSE) for a stream that ends early.
    """
    answer = _Answer()
    async with opened as responses:
        async for response in responses:
            match response.WhichOneof("event"):
                case "started":
                    note_window(response.started.model.context_window)
                    yield answer.start(response.started)
                case "delta":
                    yield answer.add(response.delta)
                case "candidate_end":
                    answer.end = response.candidate_end
                case "completed" if answer.end is not None:
                    yield answer.output(usage_from_proto(response.completed.usage))
                    return
    raise _ended_early()


async def read_candidates(
    opened: OpenedResponses, note_window: Callable[[int], None]
) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
    """Yield the prompt's usage, each candidate with its own usage as it ends, then the usage of all.

    Raises Internal (INFERENCE_MALFORMED_RESPONSE) for a stream that ends early.
    """
    answers: dict[int, _Answer] = {}
    first = _Answer()
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
                    answer.end = end
                    usage = TokenUsage(output_tokens=end.output_tokens)
                    yield CandidateOutput(end.candidate_index, answer.output(usage))
                case "completed":
                    yield usage_from_proto(response.completed.usage)
                    return
    raise _ended_early()


def _ended_early() -> Internal:
    return Internal("the inference stream ended early", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)
