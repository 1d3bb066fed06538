"""Computes the queued texts of all requests in batches, on a thread of its own. Knows nothing of tokenization."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass

import numpy as np

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Cancelled, DeadlineExceeded, ErrorCode, Internal, Overloaded, Unavailable
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import current_deadline
from services.inference.core.embedding import Text, TextQueue, Vectors
from services.inference.ports import TextEmbedder

RETRY_AFTER_S = 1.0

log = get_logger(__name__)


@dataclass(slots=True)
class _Request:
    rows: dict[int, Vectors]
    size: int
    deadline: Deadline
    done: asyncio.Future[None]

    def take(self, index: int, row: Vectors) -> None:
        self.rows[index] = row
        if len(self.rows) == self.size and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class EmbedderLoop:
    """Runs the batches of one embedder. Used from one event loop.

    Cancellation and deadlines take effect between batches.
    """

    def __init__(self, embedder: TextEmbedder, *, queue_capacity: int, clock: Clock) -> None:
        self.queue = TextQueue(max_tokens=embedder.max_batch_tokens, max_texts=embedder.max_batch_texts)
        self.queue_capacity = queue_capacity
        self.running_texts = 0
        self.computed_tokens_total = 0
        self.broken_because = ""
        self.embedder = embedder
        self._clock = clock
        self._requests: dict[int, _Request] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._worker: asyncio.Task[None] | None = None
        self._batch_started_s: float | None = None

    async def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return a vector per tokenized text, in order."""
        number = self.queue.add(texts)
        request = _Request({}, len(texts), current_deadline(), asyncio.get_running_loop().create_future())
        self._requests[number] = request
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), context=Context())  # it serves more than this request
        try:
            await request.done
        finally:
            self.queue.remove(number)
            del self._requests[number]
        return np.stack([request.rows[index] for index in range(request.size)])

    def check_capacity(self) -> None:
        """Raise Overloaded (INFERENCE_OVERLOADED) when the queue is full, and Unavailable when the loop is broken."""
        if self.broken_because:
            raise self._broken()
        is_idle = self._batch_started_s is None
        if self.queue.waiting >= self.queue_capacity + is_idle:
            raise Overloaded(
                f"{self.queue.waiting} requests wait already, the limit is {self.queue_capacity}",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )

    def stuck_for_s(self, now_s: float) -> float:
        """Return the age of the current batch; 0 when none is computed."""
        if self._batch_started_s is None:
            return 0.0
        return now_s - self._batch_started_s

    def give_up(self, reason: str) -> None:
        """Fail every request and refuse new ones: the thread is stuck."""
        if not self.broken_because:
            self.broken_because = reason
            self._fail_all(self._broken())

    async def close(self) -> None:
        """Fail the waiting requests, finish the current batch and end the thread."""
        self.broken_because = self.broken_because or "the service stops"
        self._fail_all(Cancelled("the service stops"))
        if self._worker is not None:
            await self._worker
        await asyncio.to_thread(self._thread.shutdown)

    async def _work(self) -> None:
        while self.queue and not self.broken_because:
            now_s = self._clock.monotonic_s()
            for number, request in self._requests.items():
                if request.deadline.has_passed(now_s):
                    self.queue.remove(number)
                    request.fail(DeadlineExceeded("the deadline passed while the texts were computed"))
            if batch := self.queue.take():
                await self._compute(batch)

    async def _compute(self, batch: Sequence[Text]) -> None:
        tokens = [text.tokens for text in batch]
        self._batch_started_s = self._clock.monotonic_s()
        self.running_texts = len(batch)
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self._thread, self.embedder.embed, tokens)
        except Internal as error:
            log.error("a batch of texts failed", error=str(error))  # noqa: TRY400 - an expected engine failure
            self._fail_batch(batch, str(error))
            return
        except Exception as error:
            log.exception("the embedder raised")
            self._fail_batch(batch, f"the embedder died of {type(error).__name__}")
            return
        finally:
            self._batch_started_s = None
            self.running_texts = 0
        self.computed_tokens_total += sum(map(len, tokens))
        for text, row in zip(batch, rows, strict=True):
            if (request := self._requests.get(text.request)) is not None:
                request.take(text.index, row)

    def _fail_batch(self, batch: Sequence[Text], reason: str) -> None:
        for text in batch:
            self.queue.remove(text.request)
            if (request := self._requests.get(text.request)) is not None:
                request.fail(Internal(reason, code=ErrorCode.INFERENCE_ENGINE_ERROR))

    def _fail_all(self, error: Exception) -> None:
        for number, request in self._requests.items():
            self.queue.remove(number)
            request.fail(error)

    def _broken(self) -> Unavailable:
        return Unavailable(f"the engine is broken: {self.broken_because}", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)
