"""Implements InferencePort over several inference services, each of which serves some of the models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.logging import get_logger
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

log = get_logger(__name__)


class PooledInference:
    """Implements InferencePort: the alias in a call selects the service.

    Args:
        default: The service for the empty alias, and for every alias outside the pools.
        pools: The services for the other aliases, by alias.
    """

    def __init__(self, default: InferencePort, pools: Mapping[str, InferencePort]) -> None:
        self._default = default
        self._pools = pools

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], texts: Sequence[str], model: str
    ) -> TokenCount:
        """Count the tokens with the service of the model."""
        return await self._of(model).count_tokens(messages, tools, texts, model)

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the reachable models by alias, the default service's models first.

        The models of an unreachable pool are omitted. An error of the default service is raised.
        """
        others = {id(service): service for service in self._pools.values() if service is not self._default}
        listed, *rest = await asyncio.gather(
            self._default.list_models(), *(_models_of(service) for service in others.values())
        )
        models = [model for model in listed if self._of(model.name) is self._default]
        for service, served in zip(others.values(), rest, strict=True):
            models += [model for model in served if self._of(model.name) is service]
        return models

    def context_window(self, model: str) -> int:
        """Return the last known context window of the model, or 0 if it is unknown."""
        return self._of(model).context_window(model)

    def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[InferenceDelta | InferenceOutput, None]:
        """Stream the output from the service of the model."""
        return self._of(hints.model).infer(command, hints)

    def sample(self, command: Sample, hints: Hints) -> AsyncGenerator[CandidateOutput | TokenUsage, None]:
        """Stream the output from the service of the model."""
        return self._of(hints.model).sample(command, hints)

    async def score(self, command: Infer, hints: Hints, continuations: Sequence[str]) -> Scores:
        """Score each text against the query with the service that runs the model."""
        return await self._of(hints.model).score(command, hints, continuations)

    async def decide(self, command: Decide, hints: Hints) -> QuestionScores:
        """Score the questions with the service of the model."""
        return await self._of(hints.model).decide(command, hints)

    async def embed(self, texts: Sequence[str], model: str) -> Vectors:
        """Embed the texts with the service of the model."""
        return await self._of(model).embed(texts, model)

    async def score_pairs(self, query: str, texts: Sequence[str], model: str) -> PairScores:
        """Score with the service of the model."""
        return await self._of(model).score_pairs(query, texts, model)

    def _of(self, alias: str) -> InferencePort:
        return self._pools.get(alias, self._default)


async def _models_of(service: InferencePort) -> Sequence[ModelInfo]:
    try:
        return await service.list_models()
    except PaganticError as error:
        log.warning("an inference service does not list its models", error=str(error))
        return ()
