"""Embeds stored chunks in the background. Waiting chunks are stored, so the work resumes after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from pagantic_common.domain.backoff import Backoff
from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, PaganticError, PreconditionFailed
from pagantic_common.domain.text.fitting import PrefixedEmbedder, TextEmbedder, check_embedding_model, embed_beginnings
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import work_scope
from services.context.core.document import Collection, CollectionDefaults, CollectionKey, check_collection_name
from services.context.ports import EmbeddingStore, UnembeddedChunks

CHUNKS_AT_ONCE = 32
MAX_PAUSE_S = 60.0
SET_ASIDE_S = 3600  # Delay, in seconds, before chunks that cannot be embedded are retried.


log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Rest:
    """The number of consecutive failures of a model, and the end of its pause."""

    failures: int
    until_s: float


class BackgroundEmbedding:
    """Embeds the waiting chunks, oldest first, a few of each collection in rotation.

    Args:
        store: Finds the waiting chunks.
        embedder: Computes the embeddings.
        defaults: The prefixes that models expect.
        pause_s: The pause while no chunk waits, and the first pause after a failure of a model.
        monotonic_s: The clock for these pauses.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        embedder: TextEmbedder,
        defaults: CollectionDefaults,
        pause_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._defaults = defaults
        self._pause_s = pause_s
        self._backoff = Backoff(pause_s, max(pause_s, MAX_PAUSE_S))
        self._monotonic_s = monotonic_s
        self._resting: dict[str, _Rest] = {}
        self._last_collection_id = 0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Trigger an immediate search for waiting chunks."""
        self._woken.set()

    async def run(self) -> None:
        """Embed until cancelled. A failure of a model is logged and pauses the model, longer with every failure."""
        while True:
            waiting = await self._claim()
            if waiting is None:
                await self._wait()
                continue
            self._last_collection_id = waiting.collection_id
            try:
                await self._embed_claimed(waiting)
                self._resting.pop(waiting.model, None)
            except Exception as error:  # noqa: BLE001 - nobody would start the embedding again
                self._rest(waiting.model, error)

    async def _claim(self) -> UnembeddedChunks | None:
        """Claim waiting chunks. Returns None if no chunk waits or the store fails; a failure of the store is logged."""
        now_s = self._monotonic_s()
        resting = [model for model, rest in self._resting.items() if rest.until_s > now_s]
        # An error must not end the loop: nothing restarts the loop, so all embedding would stop.
        try:
            return await self._store.claim_unembedded(CHUNKS_AT_ONCE, resting, after=self._last_collection_id)
        except Exception as error:
            log.warning("embedding waits for the store", reason=str(error), exc_info=_is_unforeseen(error))
            return None

    async def _embed_claimed(self, waiting: UnembeddedChunks) -> None:
        """Embed chunks. Raises the model's error if the model accepted no chunk."""
        try:
            refusal = await self._embed_acceptable(waiting)
        except BaseException:
            # Another replica can then continue at once, even if this service stops. An unreleased claim expires later.
            with suppress(Exception):
                await self._store.release(waiting)
            raise
        if refusal is not None:
            raise refusal

    async def _embed_acceptable(self, waiting: UnembeddedChunks) -> PaganticError | None:
        """Embed the chunks that the model accepts, and set the rejected chunks aside.

        The halves of a rejected batch are tried. Returns the model's error if the model accepted no chunk.
        """
        try:
            await self._embed(waiting)
        except PreconditionFailed as error:  # The vectors do not fit the collection. The model has not failed.
            await self._set_aside(waiting, error)
        except (Internal, InvalidRequest) as error:
            if error.code is ErrorCode.CONFIG_NO_ENGINE:
                raise
            return await self._embed_halves(waiting, error)
        return None

    async def _embed_halves(self, refused: UnembeddedChunks, refusal: PaganticError) -> PaganticError | None:
        if len(refused.ids) == 1:
            await self._set_aside(refused, refusal)
            return refusal
        refusals = [await self._embed_acceptable(half) for half in _halves_of(refused)]
        if None in refusals:
            return None
        return refusal

    async def _embed(self, waiting: UnembeddedChunks) -> None:
        embedder = PrefixedEmbedder(self._embedder, waiting.prefix)
        with work_scope(principal=work_of(waiting.tenant)):
            vectors = await embed_beginnings(embedder, waiting.model, waiting.contents)
        await self._store.put_embeddings(waiting, vectors)

    async def _set_aside(self, waiting: UnembeddedChunks, error: PaganticError) -> None:
        await self._store.set_aside(waiting, SET_ASIDE_S)
        log.warning(
            "chunks are not embedded",
            tenant=waiting.tenant,
            model=waiting.model,
            chunks=list(waiting.ids),
            reason=str(error),
            code=error.code,
            seconds=SET_ASIDE_S,
        )

    def _rest(self, model: str, error: Exception) -> None:
        failures = 1
        if (last := self._resting.get(model)) is not None:
            failures += last.failures
        pause_s = self._backoff.wait_s(failures)
        self._resting[model] = _Rest(failures, self._monotonic_s() + pause_s)
        log.warning(
            "embedding waits",
            model=model,
            reason=str(error),
            code=getattr(error, "code", None),
            seconds=pause_s,
            exc_info=_is_unforeseen(error),
        )

    async def change_model(self, key: CollectionKey, model: str) -> Collection:
        """Queue a collection to be embedded again with a model. An empty model removes the embeddings.

        The collection then stores the model's currently configured prefixes.
        """
        check_collection_name("collection", key.name)
        if model:
            await check_embedding_model(self._embedder, model)
        collection = await self._store.change_model(key, model, self._defaults.prefixes_of(model))
        self.wake()
        return collection

    async def _wait(self) -> None:
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), self._pause_s)
        except TimeoutError:
            return


def _halves_of(chunks: UnembeddedChunks) -> list[UnembeddedChunks]:
    middle = len(chunks.ids) // 2
    return [
        replace(chunks, ids=chunks.ids[part], contents=chunks.contents[part])
        for part in (slice(None, middle), slice(middle, None))
    ]


def _is_unforeseen(error: Exception) -> bool:
    """Return whether an error should be logged with its traceback."""
    return not isinstance(error, PaganticError)
