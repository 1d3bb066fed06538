"""Model calls outside executions: listing, embedding, reranking and counting tokens."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, ModelInfo, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import current_principal
from services.orchestrator.app.recording.recorder import count_usage
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.registry import Registry
from services.orchestrator.app.services import CountTokens, Embed, ListModels, ScorePairs
from services.orchestrator.core.cost import prices_for
from services.orchestrator.core.model.keys import Account, account_of
from services.orchestrator.core.relevance import Reranked, best_first
from services.orchestrator.ports.services import TokenCount, Vectors
from services.orchestrator.ports.serving import ReplicaChange, ReplicaReport, ServingPort

MAX_RERANKED = 1024
TEXTS_OF_A_CALL = 32  # low, because a cross-encoder is slow and other requests wait meanwhile
_EMBED, _SCORE_PAIRS = "embed", "score_pairs"  # The names of the capabilities, as defined by the inference service.
_HOW_TO_EMBED = (
    "makes embeddings: install the bundled one with `make setup`, or add a GGUF file to PAGANTIC_INFERENCE_MODELS"
)
_HOW_TO_SCORE_PAIRS = "is a cross-encoder: add a GGUF file of one to PAGANTIC_INFERENCE_MODELS"


class Models:
    """The models that the caller may use, and their work outside executions.

    This work counts against the concurrency limits. The tokens that a model reads are charged to the caller's budgets
    and added to the caller's usage.

    Args:
        environment: Provides the services, the journal and the prices.
        registry: Limits concurrent work.
        serving: The replicas that serve the models.
    """

    def __init__(self, environment: Environment, registry: Registry, serving: ServingPort) -> None:
        self._services = environment.services
        self._journal = environment.journal
        self._prices = environment.limits.prices
        self._registry = registry
        self._serving = serving
        self._max_running = environment.limits.max_running

    @property
    def running(self) -> tuple[int, int]:
        """The number of executions and other work that run here, and the maximum number."""
        return self._registry.count, self._max_running

    async def list_replicas(self) -> Sequence[ReplicaReport]:
        """Return the replicas of the inference services, with their current reports."""
        return await self._serving.list_replicas()

    async def load(self, model: str) -> Sequence[ReplicaChange]:
        """Load a model in each of its replicas. Raises the first error if all replicas fail."""
        return _checked(await self._serving.load_model(model))

    async def unload(self, model: str) -> Sequence[ReplicaChange]:
        """Unload a model in each of its replicas. Raises the first error if all replicas fail."""
        return _checked(await self._serving.unload_model(model))

    async def list(self) -> Sequence[ModelInfo]:
        """Return the models, the default model first."""
        return await self._services.do(ListModels())

    async def count_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        texts: Sequence[str],
        model: str,
        *,
        size_bytes: int = 0,
    ) -> TokenCount:
        """Return the token counts of a conversation and of each text. Counting is free of charge.

        An empty conversation has 0 tokens. Raises Overloaded at a concurrency limit, and the errors of the inference
        service.
        """
        with self._registry.counted(account_of(current_principal()), size_bytes):
            return await self._services.do(CountTokens(texts, model, messages, tools))

    async def embed(self, texts: Sequence[str], model: str, *, size_bytes: int = 0) -> Vectors:
        """Return a vector for each text. An empty alias selects the caller's first permitted embedding model.

        Raises InvalidRequest (CONFIG_NO_ENGINE) if there is no permitted model, Overloaded at a concurrency limit, and
        the errors of the inference service.
        """
        account = account_of(current_principal())
        with self._registry.counted(account, size_bytes):
            alias = model or await self._first(_EMBED, _HOW_TO_EMBED)
            vectors = await self._services.do(Embed(texts, alias))
            await self._count(account, vectors.usage, alias)
        return vectors

    async def rerank(
        self, query: str, texts: Sequence[str], model: str, *, top_n: int = 0, size_bytes: int = 0
    ) -> Reranked:
        """Rank texts by their probability of relevance. An empty alias selects the first permitted cross-encoder.

        Raises the errors of `embed`, and InvalidRequest if the number of texts or results is invalid.
        """
        if not 1 <= len(texts) <= MAX_RERANKED:
            raise InvalidRequest(f"texts has {len(texts)} entries: send 1 to {MAX_RERANKED}")
        if top_n < 0:
            raise InvalidRequest(f"top_n is {top_n}: send 0 for all results, or a positive number")
        account, scores, usage = account_of(current_principal()), list[float](), TokenUsage()
        with self._registry.counted(account, size_bytes):
            alias = model or await self._first(_SCORE_PAIRS, _HOW_TO_SCORE_PAIRS)
            try:
                for start in range(0, len(texts), TEXTS_OF_A_CALL):
                    part = texts[start : start + TEXTS_OF_A_CALL]
                    scored = await self._services.do(ScorePairs(part, alias, query))
                    scores += scored.values
                    usage += scored.usage
            finally:
                await self._count(account, usage, alias)
        return Reranked(best_first(scores)[: top_n or None], usage)

    async def _first(self, capability: str, how_to: str) -> str:
        """Return the alias of the first model with a capability.

        Raises InvalidRequest, with advice, if no model has the capability.
        """
        for model in await self._services.do(ListModels()):
            if capability in model.capabilities:
                return model.name
        raise InvalidRequest(
            f"no model that you may use {how_to}",
            code=ErrorCode.CONFIG_NO_ENGINE,
            details={"missing_capability": capability},
        )

    async def _count(self, account: Account, usage: TokenUsage, model: str) -> None:
        await count_usage(self._journal, account, usage, model, prices_for(self._prices, model))


def _checked(changes: Sequence[ReplicaChange]) -> Sequence[ReplicaChange]:
    """Return the changes if any change succeeded, or else raise the first error."""
    if changes[0].error is not None and all(change.error is not None for change in changes):
        raise changes[0].error
    return changes
