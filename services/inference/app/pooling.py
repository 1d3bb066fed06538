"""Runs models that pool a sequence of tokens into one row: embedding models (Embed) and cross-encoders (ScorePairs).

Each model has one loop, which computes the queued texts of all requests in batches on a separate thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
from services.inference.app.workload import Load
from services.inference.core.embedding import MAX_TEXTS, Text, TextQueue, Vectors, unit_vectors
from services.inference.core.pairs import PairLayout, pair_scores
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
    """Runs the batches of one embedder. Not thread-safe: use it from a single event loop.

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
        """Return one vector per tokenized text, in order."""
        number = self.queue.add(texts)
        request = _Request({}, len(texts), current_deadline(), asyncio.get_running_loop().create_future())
        self._requests[number] = request
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), context=Context())  # the worker also serves other requests
        try:
            await request.done
        finally:
            self.queue.remove(number)
            del self._requests[number]
        return np.stack([request.rows[index] for index in range(request.size)])

    def check_capacity(self) -> None:
        """Raise Overloaded (INFERENCE_OVERLOADED) if the queue is full, and Unavailable if the loop is broken."""
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
        """Return the age of the current batch in seconds, or 0 while no batch is computed."""
        if self._batch_started_s is None:
            return 0.0
        return now_s - self._batch_started_s

    def give_up(self, reason: str) -> None:
        """Fail all requests and reject new requests, because the thread is stuck."""
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


class PooledWork:
    """A Workload that owns a model and computes one row per sequence; the base of embedding and pair scoring."""

    def __init__(self, loop: EmbedderLoop) -> None:
        self.embedder = loop.embedder
        self.preparation = Preparation(self.embedder, window_tokens=self.embedder.model.context_window)
        self._loop = loop

    @property
    def broken_because(self) -> str:
        """The reason why the model no longer serves requests, or an empty string while it works."""
        return self._loop.broken_because

    def load(self) -> Load:
        """Return the load of the model. Each text counts as a sequence."""
        loop = self._loop
        return Load(
            queued_requests=loop.queue.waiting,
            queue_capacity=loop.queue_capacity,
            running_sequences=loop.running_texts,
            sequence_capacity=self.embedder.max_batch_texts,
            computed_tokens_total=loop.computed_tokens_total,
        )

    def stuck_for_s(self, now_s: float) -> float:
        """Return the age of the current batch in seconds, or 0 while no batch is computed."""
        return self._loop.stuck_for_s(now_s)

    def give_up(self, reason: str) -> None:
        """Fail all requests and reject new requests, because the thread is stuck."""
        self._loop.give_up(reason)

    async def close(self) -> None:
        """Fail the waiting requests, finish the current batch, end the threads and free the model."""
        await self._loop.close()
        await self.preparation.close()
        self.embedder.close()

    def _check(self, texts: Sequence[str]) -> None:
        """Raise InvalidRequest unless there are 1 to 256 texts, and Overloaded if the queue is full."""
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest(f"{len(texts)} texts: there must be 1 to {MAX_TEXTS}")
        self._loop.check_capacity()

    async def _pool(self, tokenize: Callable[[], Sequence[Sequence[int]]]) -> tuple[Vectors, TokenUsage]:
        """Return one row for each sequence that `tokenize` returns, in order, and the usage."""
        sequences = await self.preparation.run(tokenize)
        self._loop.check_capacity()
        usage = TokenUsage(
            prompt_tokens=sum(map(len, sequences)),
            context_tokens=max(map(len, sequences)),
            context_window=self.embedder.model.context_window,
        )
        return await self._loop.embed(sequences), usage


class Embedding(PooledWork):
    """A Workload that owns one model and serves Embed with it."""

    async def embed(self, texts: Sequence[str]) -> tuple[Vectors, TokenUsage]:
        """Return one vector of unit length per text, in order, and the usage.

        Raises InvalidRequest unless there are 1 to 256 texts and each text has tokens. Raises InvalidRequest
        (INFERENCE_CONTEXT_EXCEEDED) if a text is longer than the model's window, and Overloaded (INFERENCE_OVERLOADED)
        if the queue is full.
        """
        self._check(texts)
        for position, text in enumerate(texts):
            self.preparation.check_text(f"texts[{position}]", text)
        vectors, usage = await self._pool(lambda: self._tokenize(texts))
        return unit_vectors(vectors), usage

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


class PairScoring(PooledWork):
    """A Workload that owns one cross-encoder and serves ScorePairs with it.

    The cross-encoder reads the query together with each text.
    """

    def __init__(self, loop: EmbedderLoop, layout: PairLayout) -> None:
        super().__init__(loop)
        self._layout = layout

    async def score_pairs(self, query: str, texts: Sequence[str]) -> tuple[list[float], TokenUsage]:
        """Return the score of each text for the query, in order, and the usage.

        Raises InvalidRequest unless there are 1 to 256 texts and the query has text. Raises InvalidRequest
        (INFERENCE_CONTEXT_EXCEEDED) if the query is longer than half of the window, and Overloaded
        (INFERENCE_OVERLOADED) if the queue is full.
        """
        self._check(texts)
        if not query.strip():
            raise InvalidRequest("query is empty")
        self.preparation.check_text("query", query)
        rows, usage = await self._pool(lambda: self._join(query, texts))
        return pair_scores(rows), usage

    def _join(self, query: str, texts: Sequence[str]) -> list[list[int]]:
        layout, window = self._layout, self.embedder.model.context_window
        query_tokens = self._tokens(layout.query_lead + query)
        layout.check_query(query_tokens, window)
        # Text beyond this length cannot fit into the window. Cutting it limits the time for tokenization.
        longest = window * self.embedder.longest_token_bytes
        cut_texts = ((layout.text_lead + text)[:longest] for text in texts)
        return [layout.join(query_tokens, self._tokens(text), window) for text in cut_texts]

    def _tokens(self, text: str) -> list[int]:
        return self.embedder.tokenize(text, add_special=False, parse_special=False)
