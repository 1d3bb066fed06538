"""The inference service, with a span and a measurement for each call by the conventions for generative AI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry import genai
from pagantic_common.telemetry.genai import Operation
from services.orchestrator.app.recording.observing.operation import ObservedOperation, WritableAttributes, operation
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample
from services.orchestrator.ports.services import (
    InferencePort,
    PairScores,
    QuestionScores,
    Scores,
    TokenCount,
    Vectors,
)

_SAMPLING = {
    "top_k": genai.REQUEST_TOP_K,
    "frequency_penalty": genai.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": genai.REQUEST_PRESENCE_PENALTY,
}


class ObservedInference(InferencePort):
    """An inference service that records a span and measurements for each call."""

    def __init__(self, inference: InferencePort) -> None:
        self._inference = inference

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        return await self._inference.count_tokens(messages, tools, texts, model)

    async def list_models(self) -> Sequence[ModelInfo]:
        return await self._inference.list_models()

    def context_window(self, model: str) -> int:
        return self._inference.context_window(model)

    async def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        attributes = _request_attributes(command, hints)
        attributes[genai.REQUEST_STREAM] = True
        with operation(Operation.CHAT, hints.model, attributes) as observed:
            async with aclosing(self._inference.infer(command, hints)) as pieces:
                async for piece in pieces:
                    reason = piece.finish_reason.value if isinstance(piece, InferenceOutput) else ""
                    observed.note(piece.model, piece.usage, reason)
                    observed.note_chunk()
                    yield piece

    async def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        attributes = _request_attributes(command, hints)
        attributes[genai.REQUEST_CHOICE_COUNT] = command.voting.n
        with operation(Operation.CHAT, hints.model, attributes) as observed:
            async with aclosing(self._inference.sample(command, hints)) as items:
                async for item in items:
                    _note_item(observed, item)
                    yield item

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        with operation(Operation.DECIDE, hints.model, {}) as observed:
            scores = await self._inference.score(command, hints, continuations)
            observed.note("", scores.usage)
        return scores

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        with operation(Operation.DECIDE, hints.model, {}) as observed:
            scores = await self._inference.decide(command, hints)
            observed.note(scores.model, scores.usage)
        return scores

    async def embed(self, texts: Sequence[str], model: str) -> Vectors:
        with operation(Operation.EMBEDDINGS, model, {}) as observed:
            vectors = await self._inference.embed(texts, model)
            observed.note("", vectors.usage)
        return vectors

    async def score_pairs(self, query: str, texts: Sequence[str], model: str) -> PairScores:
        with operation(Operation.DECIDE, model, {}) as observed:
            scores = await self._inference.score_pairs(query, texts, model)
            observed.note("", scores.usage)
        return scores


def _request_attributes(command: Infer | Sample, hints: Hints) -> WritableAttributes:
    temperature = hints.temperature if command.temperature is None else command.temperature
    optional = {
        genai.REQUEST_SEED: command.seed,
        genai.REQUEST_TEMPERATURE: temperature,
        genai.REQUEST_TOP_P: hints.top_p,
        genai.REQUEST_MAX_TOKENS: hints.max_tokens or None,
    }
    attributes: WritableAttributes = {name: value for name, value in optional.items() if value is not None}
    for parameter, name in _SAMPLING.items():
        if parameter in hints.sampling:
            attributes[name] = float(hints.sampling[parameter])
    attributes[genai.OUTPUT_TYPE] = "json" if command.engine_text else "text"
    return attributes


def _note_item(observed: ObservedOperation, item: CandidateOutput | TokenUsage) -> None:
    """Record the output of a candidate, or the usage of all candidates."""
    if isinstance(item, TokenUsage):
        observed.note("", item)
    else:
        observed.note(item.output.model, observed.usage, item.output.finish_reason.value)
