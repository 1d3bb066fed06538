"""The use-case behind Embed: texts become vectors, those of several requests in the same batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass

import numpy as np

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import current_deadline
from services.inference.app.preparation import Preparation
from services.inference.core.embedding import MAX_TEXTS, Text, TextQueue, Vectors, unit_vectors
from services.inference.ports import TextEmbedder

RETRY_AFTER_S = 1.0

log = get_logger(__name__)


@dataclass(slots=True)
class _Request:
    rows: dict[int, Vectors]
    size: int
    deadline: Deadline
    done: asyncio.Future[None]

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Embedding:
    """Embed over one model. Used from one event loop; one thread of its own computes.

    Cancellation and deadlines are looked at between batches.
    """

    def __init__(self, embedder: TextEmbedder, *, queue_capacity: int, clock: Clock) -> None:
        self.embedder = embedder
        self.queue = TextQueue(max_tokens=embedder.max_batch_tokens, max_texts=embedder.max_batch_texts)
        self.queue_capacity = queue_capacity
        self.running_texts = 0
        self.computed_tokens_total = 0
        self.broken_because = ""
        self._clock = clock
        self._requests: dict[int, _Request] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self.preparation = Preparation(embedder, window_tokens=embedder.model.context_window)
        self._worker: asyncio.Task[None] | None = None
        self._batch_started_s: float | None = None

    async def embed(self, texts: Sequence[str]) -> tuple[Vectors, TokenUsage]:
        """Return a vector of unit length per text, in order, and the cost.

        Raises InvalidRequest for no text or more than 256, for one without tokens, and (INFERENCE_CONTEXT_EXCEEDED)
        for one longer than the model's window; Overloaded (INFERENCE_OVERLOADED) when too many requests wait.
        """
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest(f"{len(texts)} texts: there must be 1 to {MAX_TEXTS}")
        self._check_capacity()
        for position, text in enumerate(texts):
            self.preparation.check_text(f"texts[{position}]", text)
        tokens = await self.preparation.run(self._tokenize, texts)
        self._check_capacity()
        number = self.queue.add(tokens)
        request = _Request({}, len(tokens), current_deadline(), asyncio.get_running_loop().create_future())
        self._requests[number] = request
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), context=Context())  # it serves more than this request
        try:
            await request.done
        finally:
            self.queue.remove(number)
            del self._requests[number]
        usage = TokenUsage(
            prompt_tokens=sum(map(len, tokens)),
            context_tokens=max(map(len, tokens)),
            context_window=self.embedder.model.context_window,
        )
        return unit_vectors(np.stack([request.rows[index] for index in range(request.size)])), usage

    def stuck_for_s(self, now_s: float) -> float:
        """Return how long the present batch has been computed."""
        return 0.0 if self._batch_started_s is None else now_s - self._batch_started_s

    def give_up(self, reason: str) -> None:
        """Tell every caller that the engine is broken, and refuse new requests: the thread is stuck."""
        if not self.broken_because:
            self.broken_because = reason
            self._fail_all(self._broken())

    async def close(self) -> None:
        """Fail what still waits, and let the batch at hand and every thread that uses the model end."""
        self.broken_because = self.broken_because or "the service stops"
        self._fail_all(Cancelled("the service stops"))
        if self._worker is not None:
            await self._worker
        await asyncio.to_thread(self._thread.shutdown)
        await self.preparation.close()

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        window, name = self.embedder.model.context_window, self.embedder.model.name
        tokenized = []
        for position, text in enumerate(texts):
            tokens = self.embedder.tokenize(text, add_special=True, parse_special=False)
            if not tokens:
                raise InvalidRequest(f"texts[{position}] has no tokens, and model {name!r} adds none")
            if len(tokens) > window:
                raise InvalidRequest(
                    f"texts[{position}] has {len(tokens)} tokens, the context window of model {name!r} {window}: "
                    "shorten or split it",
                    code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
                    details={"text_index": position, "prompt_tokens": len(tokens), "context_window": window},
                )
            tokenized.append(tokens)
        return tokenized

    def _check_capacity(self) -> None:
        if self.broken_because:
            raise self._broken()
        is_idle = self._batch_started_s is None
        if self.queue.waiting >= self.queue_capacity + is_idle:
            raise Overloaded(
                f"{self.queue.waiting} requests wait already, the limit is {self.queue_capacity}",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )

    def _broken(self) -> Unavailable:
        return Unavailable(f"the engine is broken: {self.broken_because}", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)

    async def _work(self) -> None:
        while self.queue and not self.broken_because:
            now_s = self._clock.monotonic_s()
            for number, request in self._requests.items():
                if request.deadline.has_passed(now_s):
                    self.queue.remove(number)
                    request.fail(DeadlineExceeded("the deadline passed while the texts were embedded"))
            if batch := self.queue.take():
                await self._compute(batch)

    async def _compute(self, batch: Sequence[Text]) -> None:
        tokens = [text.tokens for text in batch]
        self._batch_started_s = self._clock.monotonic_s()
        self.running_texts = len(batch)
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self.embedder.embed, tokens)
        except Exception as error:
            if isinstance(error, Internal):
                reason = str(error)
                log.error("a batch of texts failed", error=reason)  # noqa: TRY400 - an expected engine failure
            else:
                reason = f"the embedder died of {type(error).__name__}"
                log.exception("the embedder raised")
            for text in batch:
                self.queue.remove(text.request)
                if (request := self._requests.get(text.request)) is not None:
                    request.fail(Internal(reason, code=ErrorCode.INFERENCE_ENGINE_ERROR))
            return
        finally:
            self._batch_started_s = None
            self.running_texts = 0
        self.computed_tokens_total += sum(map(len, tokens))
        for text, row in zip(batch, rows, strict=True):
            if (request := self._requests.get(text.request)) is not None:
                request.rows[text.index] = row
                if len(request.rows) == request.size and not request.done.done():
                    request.done.set_result(None)

    def _fail_all(self, error: Exception) -> None:
        for number, request in self._requests.items():
            self.queue.remove(number)
            request.fail(error)
