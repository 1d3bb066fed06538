"""The inference service, restricted to the models that a tenant may use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.app.access.permitting.checks import check_model, find_model_denial
from services.orchestrator.core.model.request import Hints
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.deciding import Decide
from services.orchestrator.core.turn.voting import Sample
from services.orchestrator.ports.policy import Policy
from services.orchestrator.ports.services import (
    InferencePort,
    PairScores,
    QuestionScores,
    Scores,
    TokenCount,
    Vectors,
)


class PermittedInference(InferencePort):
    """An inference service that raises PermissionDenied (AUTH_POLICY) if the policy denies a model."""

    def __init__(self, inference: InferencePort, policy: Policy) -> None:
        self._inference = inference
        self._policy = policy

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        check_model(self._policy, model)
        return await self._inference.count_tokens(messages, tools, texts, model)

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the models that the tenant may use."""
        models = await self._inference.list_models()
        return [model for model in models if not find_model_denial(self._policy, model.name)]

    def context_window(self, model: str) -> int:
        return self._inference.context_window(model)

    async def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        check_model(self._policy, hints.model)
        async with aclosing(self._inference.infer(command, hints)) as pieces:
            async for piece in pieces:
                yield piece

    async def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        check_model(self._policy, hints.model)
        async with aclosing(self._inference.sample(command, hints)) as items:
            async for item in items:
                yield item

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        check_model(self._policy, hints.model)
        return await self._inference.score(command, hints, continuations)

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        check_model(self._policy, hints.model)
        return await self._inference.decide(command, hints)

    async def embed(self, texts: Sequence[str], model: str) -> Vectors:
        check_model(self._policy, model)
        return await self._inference.embed(texts, model)

    async def score_pairs(self, query: str, texts: Sequence[str], model: str) -> PairScores:
        check_model(self._policy, model)
        return await self._inference.score_pairs(query, texts, model)
