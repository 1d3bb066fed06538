"""The models of this service by alias: loaded when first used, unloaded by least use where memory is limited."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, PaganticError, Unavailable
from pagantic_common.domain.messages import ModelInfo
from services.inference.app.embedding import Embedding
from services.inference.app.generation import Generation
from services.inference.app.preparation import Preparation
from services.inference.core.embedding import CAPABILITY
from services.inference.ports import Tokenizer

RETRY_AFTER_S = 5.0
COOL_DOWN_S = 5.0  # between two attempts to load a model that fails


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model that can be served; `memory_bytes` is what loading it is expected to take."""

    info: ModelInfo
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model and what it can do."""

    info: ModelInfo
    tokenizer: Tokenizer
    close: Callable[[], Awaitable[None]]
    generation: Generation | None = None
    embedding: Embedding | None = None

    @property
    def preparation(self) -> Preparation:
        """What tokenizes for this model."""
        return (self.generation or self.embeds()).preparation

    def generates(self) -> Generation:
        """Return what generates text; raises InvalidRequest when this model does not."""
        if self.generation is None:
            raise InvalidRequest(
                f"model {self.info.name!r} makes embeddings, not text", code=ErrorCode.CONFIG_NO_ENGINE
            )
        return self.generation

    def embeds(self) -> Embedding:
        """Return what makes embeddings; raises InvalidRequest when this model does not."""
        if self.embedding is None:
            raise InvalidRequest(
                f"model {self.info.name!r} generates text, it makes no embeddings", code=ErrorCode.CONFIG_NO_ENGINE
            )
        return self.embedding


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the loaded models are, together."""

    queued_requests: int = 0
    queue_capacity: int = 0
    running_sequences: int = 0
    sequence_capacity: int = 0
    kv_used_tokens: int = 0
    kv_capacity_tokens: int = 0
    output_tokens_total: int = 0
    computed_tokens_total: int = 0
    preemptions_total: int = 0


class _Entry:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.loading: asyncio.Task[ServedModel] | None = None
        self.users = 0
        self.last_used = 0
        self.loaded_at_s = -math.inf
        self.failure: PaganticError | None = None  # why the last load failed, until `retry_at_s`
        self.retry_at_s = -math.inf


class Models:
    """Serves models by alias; the first one is the default. Used from one event loop.

    Args:
        specs: At least one, with distinct aliases.
        load: Loads a model.
        memory_limit_bytes: What loaded models may take together; 0 is no limit.
        min_residence_s: How long a loaded model stays at least; else two models in the room of one would take turns.
        monotonic_s: The time.

    Attributes:
        in_use: Set while anything uses a model.
    """

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        load: Callable[[ModelSpec], Awaitable[ServedModel]],
        *,
        memory_limit_bytes: int = 0,
        min_residence_s: float = 0.0,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = {spec.info.name: _Entry(spec) for spec in specs}
        self._default = specs[0].info.name
        self._load_model = load
        self._memory_limit_bytes = memory_limit_bytes
        self._min_residence_s = min_residence_s
        self._monotonic_s = monotonic_s
        self.in_use = asyncio.Event()
        self._uses = 0
        self._changing = asyncio.Lock()

    @property
    def infos(self) -> list[ModelInfo]:
        """All models, the default first."""
        return [entry.spec.info for entry in self._entries.values()]

    @property
    def loaded(self) -> list[ServedModel]:
        """The models that are in memory now."""
        tasks = [entry.loading for entry in self._entries.values() if entry.loading is not None]
        return [task.result() for task in tasks if task.done() and not task.cancelled() and task.exception() is None]

    def load(self) -> Load:
        """Return how busy the service is."""
        schedulers = [served.generation.loop.scheduler for served in self.loaded if served.generation is not None]
        embeddings = [served.embedding for served in self.loaded if served.embedding is not None]
        return Load(
            queued_requests=sum(scheduler.waiting for scheduler in schedulers)
            + sum(embedding.queue.waiting for embedding in embeddings),
            queue_capacity=sum(scheduler.limits.queue_capacity for scheduler in schedulers)
            + sum(embedding.queue_capacity for embedding in embeddings),
            running_sequences=sum(scheduler.running for scheduler in schedulers)
            + sum(embedding.running_texts for embedding in embeddings),
            sequence_capacity=sum(scheduler.limits.max_running for scheduler in schedulers)
            + sum(embedding.embedder.max_batch_texts for embedding in embeddings),
            kv_used_tokens=sum(scheduler.tree.used_tokens for scheduler in schedulers),
            kv_capacity_tokens=sum(scheduler.tree.capacity_tokens for scheduler in schedulers),
            output_tokens_total=sum(scheduler.output_tokens_total for scheduler in schedulers),
            computed_tokens_total=sum(scheduler.rows_total for scheduler in schedulers)
            + sum(embedding.computed_tokens_total for embedding in embeddings),
            preemptions_total=sum(scheduler.preemptions_total for scheduler in schedulers),
        )

    def embedding_alias(self, alias: str) -> str:
        """Return the alias of an embedding model; of the first one for an empty alias.

        Raises InvalidRequest (CONFIG_NO_ENGINE) for a model that makes no embeddings, or when there is none that does.
        """
        able = [name for name, entry in self._entries.items() if CAPABILITY in entry.spec.info.capabilities]
        if alias in able or (alias and alias not in self._entries):
            return alias  # an unknown one is told of when it is used
        if not alias and able:
            return able[0]
        hint = f"use {', '.join(map(repr, able))}" if able else "this service has no model that does"
        name = alias or self._default
        raise InvalidRequest(
            f"model {name!r} generates text, it makes no embeddings: {hint}", code=ErrorCode.CONFIG_NO_ENGINE
        )

    @asynccontextmanager
    async def use(self, alias: str) -> AsyncIterator[ServedModel]:
        """Hold a model in memory inside the block, loading it when it is not; an empty alias is the default.

        Raises InvalidRequest (CONFIG_NO_ENGINE) for an unknown alias, Overloaded (INFERENCE_OVERLOADED) when all that
        would have to make room is in use, and what loading raises.
        """
        entry = self._entries.get(alias or self._default)
        if entry is None:
            known = ", ".join(map(repr, self._entries))
            raise InvalidRequest(
                f"no engine serves model {alias!r}: this service has {known}", code=ErrorCode.CONFIG_NO_ENGINE
            )
        entry.users += 1
        self.in_use.set()
        self._uses += 1
        entry.last_used = self._uses
        try:
            yield await self._loaded(entry)
        finally:
            entry.users -= 1
            if not any(other.users for other in self._entries.values()):
                self.in_use.clear()

    async def close(self) -> None:
        """Unload everything."""
        for entry in self._entries.values():
            await self._unload(entry)

    async def _loaded(self, entry: _Entry) -> ServedModel:
        if entry.loading is None:
            async with self._changing:
                if entry.loading is None:
                    self._raise_recent_failure(entry)
                    await self._make_room(entry)
                    entry.loading = asyncio.ensure_future(self._load_model(entry.spec))
                    entry.loading.add_done_callback(lambda done: self._end_loading(entry, done))
        # The model is loaded for whoever comes next, also when this caller gives up.
        return await asyncio.shield(entry.loading)

    def _end_loading(self, entry: _Entry, task: asyncio.Task[ServedModel]) -> None:
        now_s = self._monotonic_s()
        entry.loaded_at_s = now_s
        if task.cancelled() or task.exception() is None:
            return
        if entry.loading is task:
            entry.loading = None
        error = task.exception()
        entry.failure = error if isinstance(error, PaganticError) else None
        entry.retry_at_s = now_s + COOL_DOWN_S

    def _raise_recent_failure(self, entry: _Entry) -> None:
        """Say again why a model cannot be loaded: to try costs seconds and memory, and seldom helps."""
        wait_s = entry.retry_at_s - self._monotonic_s()
        if wait_s <= 0:
            return
        if entry.failure is not None:
            raise type(entry.failure)(failure=entry.failure.failure, retry_after_s=wait_s)
        raise Unavailable(
            f"model {entry.spec.info.name!r} failed to load: it is tried again in {wait_s:.1f} s",
            code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE,
            retry_after_s=wait_s,
        )

    async def _make_room(self, wanted: _Entry) -> None:
        if not self._memory_limit_bytes:
            return
        while True:
            others = [entry for entry in self._entries.values() if entry.loading is not None]
            used = sum(entry.spec.memory_bytes for entry in others)
            if not others or used + wanted.spec.memory_bytes <= self._memory_limit_bytes:
                return
            idle = [entry for entry in others if entry.users == 0]
            if not idle:
                raise _no_room(wanted, "are in use", RETRY_AFTER_S)
            since_s = self._monotonic_s() - self._min_residence_s
            settled = [entry for entry in idle if entry.loaded_at_s <= since_s]
            if not settled:
                wait_s = min(entry.loaded_at_s for entry in idle) - since_s
                raise _no_room(wanted, f"were loaded less than {self._min_residence_s:g} s ago", wait_s)
            await self._unload(min(settled, key=lambda entry: entry.last_used))

    @staticmethod
    async def _unload(entry: _Entry) -> None:
        task, entry.loading = entry.loading, None
        if task is None:
            return
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await task.result().close()


def _no_room(wanted: _Entry, why: str, retry_after_s: float) -> Overloaded:
    return Overloaded(
        f"no memory to load model {wanted.spec.info.name!r}: the loaded ones {why}",
        code=ErrorCode.INFERENCE_OVERLOADED,
        retry_after_s=retry_after_s,
    )
