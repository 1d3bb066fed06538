"""Embed over a model that another engine serves."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import current_principal
from services.inference.app.remote.estimation import EstimatingPreparation
from services.inference.app.remote.generation import RemoteLimits
from services.inference.app.remote.turns import Turns
from services.inference.app.remote.waiting import within_limits
from services.inference.app.workload import Load
from services.inference.core.embedding import MAX_TEXTS, Vectors, unit_vectors
from services.inference.core.remote.requests import RemoteModel, RemoteRequest, embedding_request
from services.inference.ports import RemoteEngine


class RemoteEmbedding:
    """An EmbeddingWorkload of another engine, whose connections it owns."""

    broken_because = ""

    def __init__(self, model: RemoteModel, engine: RemoteEngine, limits: RemoteLimits, *, clock: Clock) -> None:
        self.preparation = EstimatingPreparation(model.info.name)
        self._model = model
        self._engine = engine
        self._limits = limits
        self._turns = Turns(limits.max_concurrent, limits.queue_capacity)
        self._clock = clock

    def load(self) -> Load:
        """Return how busy the engine is with calls from here."""
        turns = self._turns
        return Load(turns.waiting, turns.capacity, turns.running, turns.most)

    def stuck_for_s(self, now_s: float) -> float:  # noqa: ARG002 - there is no thread that could be stuck
        """Return 0: nothing is computed here."""
        return 0.0

    def give_up(self, reason: str) -> None:
        """Do nothing: no thread of this service can be stuck here."""

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.close()

    async def embed(self, texts: Sequence[str]) -> tuple[Vectors, TokenUsage]:
        """Return a vector of unit length per text, in order, and the usage.

        Raises InvalidRequest for no text or more than 256, and the errors of the engine.
        """
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest(f"{len(texts)} texts: there must be 1 to {MAX_TEXTS}")
        name, window = self._model.info.name, self._model.info.context_window
        asking = self._ask(embedding_request(texts, self._model))
        vectors, tokens = await within_limits(asking, self._clock, name)
        if len(vectors) != len(texts):
            raise Internal(
                f"the engine of model {name!r} gave {len(vectors)} vectors for {len(texts)} texts",
                code=ErrorCode.INFERENCE_MALFORMED_RESPONSE,
            )
        return unit_vectors(vectors), TokenUsage(prompt_tokens=tokens, context_window=window)

    async def _ask(self, request: RemoteRequest) -> tuple[Vectors, int]:
        async with self._turns.take(current_principal().tenant):
            asking = self._engine.embed(request)
            return await within_limits(asking, self._clock, self._model.info.name, self._limits.silence_s)
