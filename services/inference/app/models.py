"""Manages the service's models by alias: loads a model at its first use, and unloads models when memory is short.

Invariants:
    1. A model with users is never unloaded, except by `close`.
    2. Loads and unloads happen one at a time. They continue if the caller gives up.
    3. A model stays loaded for `min_residence_s`, so that two models do not keep replacing each other.
    4. A failed load is retried after COOL_DOWN_S at the earliest. Until then, its error is raised again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pagantic_common.domain.errors import (
    Aborted,
    ErrorCode,
    InvalidRequest,
    NotFound,
    Overloaded,
    PaganticError,
    Unavailable,
)
from pagantic_common.domain.messages import IMAGES, ModelInfo, count_images
from services.inference.app.generation import Generation
from services.inference.app.pooling import PairScoring
from services.inference.app.workload import EmbeddingWorkload, Load, TextWorkload, Workload
from services.inference.core import embedding, pairs
from services.inference.core.generation import ChatPrompt, InferenceRequest, Prompt
from services.inference.core.request_check import check_options

RETRY_AFTER_S = 5.0
COOL_DOWN_S = 5.0  # minimum pause between two attempts to load a failing model

WorkT = TypeVar("WorkT", bound=Workload)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model that can be served.

    `memory_bytes` is the expected memory of the loaded model, or 0 for a remote model.
    """

    info: ModelInfo
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of a model.

    `memory_bytes` is the memory of the loaded model, and `running` is the number of its requests.
    """

    is_loaded: bool
    memory_bytes: int
    running: int


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is ready to serve requests, either loaded here or served by another engine.

    Attributes:
        info: The model's description.
        workload: The workload that serves the requests.
        allowed_options: The names that a request's options_json may contain.
    """

    info: ModelInfo
    workload: Workload
    allowed_options: frozenset[str] = frozenset()

    def infers(self) -> TextWorkload:
        """Return the text workload, local or remote. Raises InvalidRequest if the model is of another kind."""
        if not isinstance(self.workload, TextWorkload):
            raise self._refusal("generates no text")
        return self.workload

    def generates(self) -> Generation:
        """Return the text workload of this service's own engine. Raises InvalidRequest for any other model."""
        if isinstance(self.workload, TextWorkload) and not isinstance(self.workload, Generation):
            raise self._refusal("is decoded by another engine, which only infers")
        return self._work_of(Generation, "generates no text")

    def weighs(self) -> Generation:
        """Return the workload that scores given text. Raises InvalidRequest for any other model."""
        return self._work_of(Generation, "tells no probabilities of given text: name a model that this service loads")

    def check_images(self, prompt: Prompt) -> None:
        """Raise InvalidRequest (CONFIG_NO_ENGINE) if the prompt has images and the model does not accept images."""
        if not isinstance(prompt, ChatPrompt) or IMAGES in self.info.capabilities:
            return
        if count_images(prompt.messages):
            raise self._refusal("takes no images: leave them out, or name a model with the capability 'images'")

    def check_options(self, request: InferenceRequest) -> None:
        """Raise InvalidRequest if the request has an option that the model does not support."""
        check_options(request, self.info.name, self.allowed_options)

    def embeds(self) -> EmbeddingWorkload:
        """Return the embedding workload. Raises InvalidRequest if the model is of another kind."""
        if not isinstance(self.workload, EmbeddingWorkload):
            raise self._refusal("makes no embeddings")
        return self.workload

    def scores_pairs(self) -> PairScoring:
        """Return the cross-encoder. Raises InvalidRequest if the model is of another kind."""
        return self._work_of(PairScoring, "is no cross-encoder")

    async def count_tokens(self, texts: Sequence[str], chat: ChatPrompt | None) -> tuple[list[int], int]:
        """Return the token count of each text, and of the rendered conversation (0 if `chat` is None)."""
        counts = await self.workload.preparation.count(texts)
        if chat is None:
            return counts, 0
        self.check_images(chat)
        return counts, await self.infers().count_chat(chat)

    def _work_of(self, kind: type[WorkT], problem: str) -> WorkT:
        if not isinstance(self.workload, kind):
            raise self._refusal(problem)
        return self.workload

    def _refusal(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"model {self.info.name!r} {problem}", code=ErrorCode.CONFIG_NO_ENGINE)


class _Entry:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.loading: asyncio.Task[ServedModel] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.users = 0
        self.last_used = 0
        self.loaded_at_s = -math.inf
        self.failure: PaganticError | None = None  # error of the last load, which is raised again until `retry_at_s`
        self.retry_at_s = -math.inf

    @property
    def served(self) -> ServedModel | None:
        """The served model, or None until it has loaded."""
        task = self.loading
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    @property
    def held_bytes(self) -> int:
        """The number of bytes that the model occupies in memory now."""
        if self.loading is None:
            return 0
        return self.spec.memory_bytes


class Models:
    """Serves models by alias; the first model is the default. Not thread-safe: use it from a single event loop.

    Args:
        specs: At least one specification. Their aliases are distinct.
        load: Loads a model.
        memory_limit_bytes: The maximum total memory of all loaded models; 0 means no limit.
        min_residence_s: The minimum time that a model stays loaded.
        monotonic_s: Returns the current time.

    Attributes:
        in_use: Set while a request uses a model.
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
        """All models, with the default model first."""
        return [entry.spec.info for entry in self._entries.values()]

    @property
    def loaded(self) -> list[ServedModel]:
        """The models that are in memory."""
        return [served for entry in self._entries.values() if (served := entry.served) is not None]

    @property
    def states(self) -> list[ModelState]:
        """The state of each model, in the order of `infos`."""
        return [
            ModelState(entry.served is not None, entry.spec.memory_bytes, entry.users)
            for entry in self._entries.values()
        ]

    @property
    def default_generation(self) -> Generation | None:
        """The workload of the default model, or None if the model is remote or not in memory."""
        workloads = [served.workload for served in self.loaded if served.info.name == self._default]
        return next((workload for workload in workloads if isinstance(workload, Generation)), None)

    def load(self) -> Load:
        """Return the total load of the loaded models."""
        return sum((served.workload.load() for served in self.loaded), Load())

    def cancel_candidates(self, inference_id: str, indexes: Sequence[int]) -> None:
        """Cancel candidates of a running inference. Its other candidates continue.

        Raises NotFound if no loaded model runs the inference, and InvalidRequest if a candidate does not exist.
        """
        for served in self.loaded:
            workload = served.workload
            if isinstance(workload, TextWorkload) and workload.runs(inference_id):
                workload.cancel_candidates(inference_id, indexes)
                return
        raise NotFound(f"no inference {inference_id!r} runs here: it ended, or another replica has it")

    def embedding_alias(self, alias: str) -> str:
        """Return the alias of an embedding model. An empty `alias` selects the first embedding model.

        Raises InvalidRequest (CONFIG_NO_ENGINE) if the model is of another kind, or if there is no embedding model.
        """
        return self._able_alias(
            alias,
            embedding.CAPABILITY,
            "makes no embeddings",
            "this service has no model that makes embeddings: install the bundled one with `make setup` and leave "
            "PAGANTIC_INFERENCE_EMBEDDING_MODEL at 'bundled', or add a GGUF file to PAGANTIC_INFERENCE_MODELS",
        )

    def cross_encoder_alias(self, alias: str) -> str:
        """Return the alias of a cross-encoder. An empty `alias` selects the first cross-encoder.

        Raises InvalidRequest (CONFIG_NO_ENGINE) if the model is of another kind, or if there is no cross-encoder.
        """
        return self._able_alias(
            alias,
            pairs.CAPABILITY,
            "is no cross-encoder",
            "this service has no cross-encoder: add a GGUF file of one to PAGANTIC_INFERENCE_MODELS",
        )

    @asynccontextmanager
    async def use(self, alias: str) -> AsyncIterator[ServedModel]:
        """Keep a model in memory inside the block, loading it first if necessary.

        An empty `alias` selects the default model. Raises InvalidRequest (CONFIG_NO_ENGINE) if the alias is unknown,
        Overloaded (INFERENCE_OVERLOADED) if no other model can be unloaded to make room, and the errors of loading.
        """
        entry = self._entry(alias)
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

    async def unload(self, alias: str) -> bool:
        """Unload a model, and return whether it was loaded. The next use of the model loads it again.

        An empty `alias` selects the default model. Raises InvalidRequest (CONFIG_NO_ENGINE) if the alias is unknown,
        and Aborted while requests use the model.
        """
        entry = self._entry(alias)
        async with self._changing:
            await self._settle()
            if entry.users:
                raise Aborted(
                    f"model {entry.spec.info.name!r} is in use, requests: {entry.users}", retry_after_s=RETRY_AFTER_S
                )
            was_loaded = entry.served is not None
            await self._unload(entry)
        return was_loaded

    async def close(self) -> None:
        """Unload all models."""
        await self._settle()
        for entry in self._entries.values():
            await self._unload(entry)

    def _entry(self, alias: str) -> _Entry:
        entry = self._entries.get(alias or self._default)
        if entry is None:
            aliases = ", ".join(map(repr, self._entries))
            raise InvalidRequest(
                f"no engine serves model {alias!r}: this service has {aliases}",
                code=ErrorCode.CONFIG_NO_ENGINE,
                details={"unknown_model": alias},
            )
        return entry

    def _able_alias(self, alias: str, capability: str, problem: str, next_step: str) -> str:
        """Return the alias of a model with a capability. An empty `alias` selects the first such model."""
        able = [name for name, entry in self._entries.items() if capability in entry.spec.info.capabilities]
        if not able:
            raise InvalidRequest(next_step, code=ErrorCode.CONFIG_NO_ENGINE, details={"missing_capability": capability})
        if not alias:
            return able[0]
        if alias in able or alias not in self._entries:
            return alias  # `use` rejects an unknown alias
        raise InvalidRequest(
            f"model {alias!r} {problem}: use {', '.join(map(repr, able))}", code=ErrorCode.CONFIG_NO_ENGINE
        )

    async def _loaded(self, entry: _Entry) -> ServedModel:
        if entry.loading is None:
            async with self._changing:
                await self._settle()
                if entry.loading is None:
                    self._raise_recent_failure(entry)
                    await self._make_room(entry)
                    entry.loading = asyncio.ensure_future(self._load_model(entry.spec))
                    entry.loading.add_done_callback(lambda done: self._end_loading(entry, done))
        # The load continues if its caller gives up, because the next caller will need the model.
        return await asyncio.shield(entry.loading)

    def _end_loading(self, entry: _Entry, task: asyncio.Task[ServedModel]) -> None:
        now_s = self._monotonic_s()
        entry.loaded_at_s = now_s
        if task.cancelled() or task.exception() is None:
            return
        if entry.loading is task:
            entry.loading = None
        error = task.exception()
        entry.failure = None
        if isinstance(error, PaganticError):
            entry.failure = error
        entry.retry_at_s = now_s + COOL_DOWN_S

    def _raise_recent_failure(self, entry: _Entry) -> None:
        """Raise the error of a recent load again: a retry costs seconds and memory, and seldom succeeds."""
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
        while self._is_room_short(wanted):
            await self._unload(self._entry_to_unload(wanted))

    def _is_room_short(self, wanted: _Entry) -> bool:
        """Return whether a loaded model must be unloaded to make room for the wanted model.

        A model larger than the limit is loaded only if no other model is loaded.
        """
        held_bytes = sum(entry.held_bytes for entry in self._entries.values())
        if not self._memory_limit_bytes or not wanted.spec.memory_bytes or not held_bytes:
            return False
        return held_bytes + wanted.spec.memory_bytes > self._memory_limit_bytes

    def _entry_to_unload(self, wanted: _Entry) -> _Entry:
        """Return the least recently used model without users. Raises Overloaded if every model must stay loaded."""
        idle = [entry for entry in self._entries.values() if entry.held_bytes and not entry.users]
        if not idle:
            raise _no_room(wanted, "are in use", RETRY_AFTER_S)
        since_s = self._monotonic_s() - self._min_residence_s
        settled = [entry for entry in idle if entry.loaded_at_s <= since_s]
        if not settled:
            wait_s = min(entry.loaded_at_s for entry in idle) - since_s
            raise _no_room(wanted, f"were loaded less than {self._min_residence_s:g} s ago", wait_s)
        return min(settled, key=lambda entry: entry.last_used)

    async def _settle(self) -> None:
        """Wait for unloads that continue after their callers have given up."""
        if unloading := [entry.unloading for entry in self._entries.values() if entry.unloading is not None]:
            await asyncio.wait(unloading)

    async def _unload(self, entry: _Entry) -> None:
        loading, entry.loading = entry.loading, None
        if loading is None:
            return
        # The unload continues if its caller gives up; otherwise, half a model would stay in memory.
        entry.unloading = asyncio.ensure_future(_close(loading))
        await asyncio.shield(entry.unloading)


async def _close(loading: asyncio.Task[ServedModel]) -> None:
    await asyncio.wait([loading])
    if not loading.cancelled() and loading.exception() is None:
        await loading.result().workload.close()


def _no_room(wanted: _Entry, why: str, retry_after_s: float) -> Overloaded:
    return Overloaded(
        f"no memory to load model {wanted.spec.info.name!r}: the loaded ones {why}",
        code=ErrorCode.INFERENCE_OVERLOADED,
        retry_after_s=retry_after_s,
    )
