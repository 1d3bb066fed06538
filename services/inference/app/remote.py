"""Serves Infer and Embed with other engines, with bounded concurrency, deadlines and estimated token counts."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    PaganticError,
    Unavailable,
)
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.scope import current_deadline, current_principal
from pagantic_common.workers.fair_places import FairPlaces
from services.inference.app.workload import Load
from services.inference.core.embedding import MAX_TEXTS, Vectors, unit_vectors
from services.inference.core.generation import ChatPrompt, Completed, Event, InferenceRequest, Started
from services.inference.core.remote.answers import Chunk, RemoteAnswers, answers_to
from services.inference.core.remote.requests import (
    RemoteModel,
    RemoteRequest,
    embedding_request,
    estimate_prompt,
    estimate_text,
    inference_request,
)
from services.inference.core.request_check import MAX_CANDIDATES
from services.inference.ports import RemoteEngine

RETRY_AFTER_S = 1.0

ResultT = TypeVar("ResultT")
COUNTS_PATIENCE_S = 5.0  # time limit for the messages after the last text: the counts and the end of the stream


async def within_limits(awaited: Awaitable[ResultT], clock: Clock, model: str, silence_s: float = math.inf) -> ResultT:
    """Await an engine's result within the caller's deadline and the engine's limit of silence.

    Raises DeadlineExceeded if the caller's deadline passes, and Unavailable (INFERENCE_MODEL_UNAVAILABLE) after
    `silence_s` seconds.
    """
    deadline = current_deadline()
    wait_s = deadline.limit(silence_s, clock.monotonic_s())
    try:
        async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
            return await awaited
    except TimeoutError:
        if deadline.has_passed(clock.monotonic_s()):
            raise DeadlineExceeded(f"the deadline passed before the engine of model {model!r} answered") from None
        raise Unavailable(
            f"the engine of model {model!r} was silent for {silence_s:g} s",
            code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE,
            retry_after_s=RETRY_AFTER_S,
        ) from None


class EstimatingPreparation:
    """A TextPreparation without a tokenizer, which estimates counts and rejects all other calls."""

    is_estimate = True

    def __init__(self, model: str) -> None:
        self._model = model

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Raise InvalidRequest (CONFIG_NO_ENGINE), because there is no tokenizer."""
        raise self._refusal(add_special, parse_special, text)

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Return the estimated token count of each text."""
        return [estimate_text(text) for text in texts]

    async def detokenize(self, tokens: Sequence[int], *, with_special: bool) -> bytes:
        """Raise InvalidRequest (CONFIG_NO_ENGINE), because there is no tokenizer."""
        raise self._refusal(tokens, with_special)

    def _refusal(self, *_unused: object) -> InvalidRequest:
        return InvalidRequest(
            f"the tokenizer of model {self._model!r} is in another engine: use CountTokens, which estimates, or a "
            "model that this service decodes itself",
            code=ErrorCode.CONFIG_NO_ENGINE,
        )


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """The limits on the use of an engine: concurrent calls, waiting calls, and seconds of silence."""

    max_concurrent: int
    queue_capacity: int
    silence_s: float

    def make_places(self) -> FairPlaces:
        """Return the places for concurrent calls of an engine, which tenants share fairly."""
        return FairPlaces(
            self.max_concurrent,
            waiting=self.queue_capacity,
            resource="the engine",
            code=ErrorCode.INFERENCE_OVERLOADED,
        )


class RemoteGeneration:
    """A TextWorkload that another engine serves. It owns the connections to that engine.

    An unreachable engine does not break the workload: each call fails separately.
    """

    broken_because = ""

    def __init__(
        self,
        model: RemoteModel,
        engine: RemoteEngine,
        limits: RemoteLimits,
        *,
        clock: Clock,
        new_seed: Callable[[], int],
    ) -> None:
        self.preparation = EstimatingPreparation(model.info.name)
        self._model = model
        self._engine = engine
        self._limits = limits
        self._places = limits.make_places()
        self._clock = clock
        self._new_seed = new_seed
        self._running: dict[str, tuple[RemoteAnswers, int]] = {}
        self._output_tokens = 0

    def load(self) -> Load:
        """Return the load that this service's calls put on the engine."""
        return Load(
            queued_requests=self._places.waiting,
            queue_capacity=self._places.max_waiting,
            running_sequences=self._places.taken,
            sequence_capacity=self._places.count,
            output_tokens_total=self._output_tokens,
        )

    def stuck_for_s(self, now_s: float) -> float:  # noqa: ARG002 - no thread can be stuck
        """Return 0, because no step is computed here."""
        return 0.0

    def give_up(self, reason: str) -> None:
        """Do nothing, because no thread of this service can be stuck."""

    async def close(self) -> None:
        """Close all connections, which ends the running inferences."""
        await self._engine.close()

    async def count_chat(self, prompt: ChatPrompt) -> int:
        """Return the estimated token count of a conversation."""
        return estimate_prompt(prompt)

    def runs(self, inference_id: str) -> bool:
        """Return whether an inference runs here."""
        return inference_id in self._running

    def cancel_candidates(self, inference_id: str, indexes: Sequence[int]) -> None:
        """Cancel candidates of an inference that runs here.

        Raises InvalidRequest if the inference has no such candidate. Each cancelled candidate ends with the engine's
        next chunk. The engine still computes the candidate while other candidates run.
        """
        answers, count = self._running[inference_id]
        if wrong := [index for index in indexes if not 0 <= index < count]:
            raise InvalidRequest(f"candidate {wrong[0]} does not exist: this inference has {count}")
        for index in indexes:
            answers.cancel(index)

    async def infer(self, request: InferenceRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of one request. Closing the generator closes the connection at once."""
        if not 1 <= request.candidate_count <= MAX_CANDIDATES:
            raise InvalidRequest(
                f"candidate_count is {request.candidate_count}: it must be between 1 and {MAX_CANDIDATES}"
            )
        seed = self._new_seed() if request.seed is None else request.seed
        wire = inference_request(request, self._model, seed)
        answers = answers_to(request, _new_call_id)
        inference_id = uuid.uuid4().hex
        async with self._place(), aclosing(self._engine.stream(wire)) as chunks:
            first = await self._next(chunks, answers)
            prompt_tokens = estimate_prompt(request.prompt)
            started_s = self._clock.monotonic_s()
            async with (
                self._named(inference_id, answers, request.candidate_count),
                aclosing(self._answer(first, chunks, answers)) as events,
            ):
                yield self._started(first, prompt_tokens, seed, inference_id)
                async for event in events:
                    yield event
        decode_seconds = self._clock.monotonic_s() - started_s
        window = self._model.info.context_window
        for event in answers.finish(prompt_tokens=prompt_tokens, window=window, decode_seconds=decode_seconds):
            if isinstance(event, Completed):
                self._output_tokens += event.usage.output_tokens
            yield event

    async def _answer(
        self, chunk: Chunk | None, chunks: AsyncGenerator[Chunk, None], answers: RemoteAnswers
    ) -> AsyncGenerator[Event, None]:
        while chunk is not None:
            for event in answers.feed(chunk):
                yield event
            if answers.are_cancelled:
                return
            chunk = await self._next(chunks, answers)

    def _started(self, first: Chunk | None, prompt_tokens: int, seed: int, inference_id: str) -> Started:
        cached = 0
        if first is not None and first.counts is not None:
            prompt_tokens, cached = first.counts.prompt_tokens, first.counts.cached_prompt_tokens
        return Started(self._model.info, prompt_tokens, cached, seed, inference_id)

    async def _next(self, chunks: AsyncGenerator[Chunk, None], answers: RemoteAnswers) -> Chunk | None:
        """Return the next chunk, or None at the end. Once all candidates have ended, a failure counts as the end."""
        silence_s = self._limits.silence_s
        if answers.have_ended:
            silence_s = min(silence_s, COUNTS_PATIENCE_S)
        try:
            return await within_limits(anext(chunks, None), self._clock, self._model.info.name, silence_s)
        except PaganticError:
            if answers.have_ended:
                return None
            raise

    @asynccontextmanager
    async def _named(self, inference_id: str, answers: RemoteAnswers, candidate_count: int) -> AsyncIterator[None]:
        """Register the inference inside the block so that callers can cancel its candidates."""
        self._running[inference_id] = (answers, candidate_count)
        try:
            yield
        finally:
            del self._running[inference_id]

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            place = stack.enter_async_context(self._places.place(current_principal().tenant))
            await within_limits(place, self._clock, self._model.info.name)
            yield


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:16]}"


class RemoteEmbedding:
    """An EmbeddingWorkload that another engine serves. It owns the connections to that engine."""

    broken_because = ""

    def __init__(self, model: RemoteModel, engine: RemoteEngine, limits: RemoteLimits, *, clock: Clock) -> None:
        self.preparation = EstimatingPreparation(model.info.name)
        self._model = model
        self._engine = engine
        self._limits = limits
        self._places = limits.make_places()
        self._clock = clock

    def load(self) -> Load:
        """Return the load that this service's calls put on the engine."""
        places = self._places
        return Load(places.waiting, places.max_waiting, places.taken, places.count)

    def stuck_for_s(self, now_s: float) -> float:  # noqa: ARG002 - no thread can be stuck
        """Return 0, because no step is computed here."""
        return 0.0

    def give_up(self, reason: str) -> None:
        """Do nothing, because no thread of this service can be stuck."""

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.close()

    async def embed(self, texts: Sequence[str]) -> tuple[Vectors, TokenUsage]:
        """Return one vector of unit length per text, in order, and the usage.

        Raises InvalidRequest unless there are 1 to 256 texts. Also raises the engine's errors.
        """
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequest(f"{len(texts)} texts: there must be 1 to {MAX_TEXTS}")
        name, window = self._model.info.name, self._model.info.context_window
        call = self._embed(embedding_request(texts, self._model))
        vectors, tokens = await within_limits(call, self._clock, name)
        if len(vectors) != len(texts):
            raise Internal(
                f"the engine of model {name!r} gave {len(vectors)} vectors for {len(texts)} texts",
                code=ErrorCode.INFERENCE_MALFORMED_RESPONSE,
            )
        return unit_vectors(vectors), TokenUsage(prompt_tokens=tokens, context_window=window)

    async def _embed(self, request: RemoteRequest) -> tuple[Vectors, int]:
        async with self._places.place(current_principal().tenant):
            call = self._engine.embed(request)
            return await within_limits(call, self._clock, self._model.info.name, self._limits.silence_s)
