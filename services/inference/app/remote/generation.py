"""Infer over a model that another engine serves."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import InvalidRequest, PaganticError
from pagantic_common.telemetry.scope import current_principal
from services.inference.app.remote.estimation import EstimatingPreparation
from services.inference.app.remote.turns import Turns
from services.inference.app.remote.waiting import within_limits
from services.inference.app.workload import Load
from services.inference.core.generation import ChatPrompt, Completed, Event, InferenceRequest, Started
from services.inference.core.remote.answers import Chunk, RemoteAnswers, answers_to
from services.inference.core.remote.estimate import estimate_prompt
from services.inference.core.remote.requests import RemoteModel, inference_request
from services.inference.ports import RemoteEngine

COUNTS_PATIENCE_S = 5.0  # for what an engine sends after the last text: its counts, and the end of the stream


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """The bounds of an engine's use: calls at once, calls that wait, candidates, and seconds of silence."""

    max_concurrent: int
    queue_capacity: int
    max_candidates: int
    silence_s: float


class RemoteGeneration:
    """A TextWorkload of another engine, whose connections it owns.

    An engine that is away does not break the workload: each call finds out by itself, and others serve.
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
        self._turns = Turns(limits.max_concurrent, limits.queue_capacity)
        self._clock = clock
        self._new_seed = new_seed
        self._running: dict[str, tuple[RemoteAnswers, int]] = {}
        self._output_tokens = 0

    def load(self) -> Load:
        """Return how busy the engine is with calls from here."""
        return Load(
            queued_requests=self._turns.waiting,
            queue_capacity=self._turns.capacity,
            running_sequences=self._turns.running,
            sequence_capacity=self._turns.most,
            output_tokens_total=self._output_tokens,
        )

    def stuck_for_s(self, now_s: float) -> float:  # noqa: ARG002 - there is no thread that could be stuck
        """Return 0: nothing is computed here."""
        return 0.0

    def give_up(self, reason: str) -> None:
        """Do nothing: no thread of this service can be stuck here."""

    async def close(self) -> None:
        """Close all connections, which ends the running inferences."""
        await self._engine.close()

    async def count_chat(self, prompt: ChatPrompt) -> int:
        """Return the estimated tokens of a conversation."""
        return estimate_prompt(prompt)

    def runs(self, inference_id: str) -> bool:
        """Tell whether an inference runs here."""
        return inference_id in self._running

    def cancel_candidates(self, inference_id: str, indexes: Sequence[int]) -> None:
        """Cancel candidates of an inference that runs here; raises InvalidRequest for a candidate it does not have.

        Each ends with the engine's next chunk. The engine still computes it while others of its request run.
        """
        answers, count = self._running[inference_id]
        if wrong := [index for index in indexes if not 0 <= index < count]:
            raise InvalidRequest(f"candidate {wrong[0]} does not exist: this inference has {count}")
        for index in indexes:
            answers.cancel(index)

    async def infer(self, request: InferenceRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of one request. Closing the generator closes the connection at once."""
        if not 1 <= request.candidate_count <= self._limits.max_candidates:
            raise InvalidRequest(
                f"candidate_count is {request.candidate_count}: it must be between 1 and {self._limits.max_candidates}"
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
        """Return the next chunk, None at the end; once all candidates ended, a failure is an end as well."""
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
        """Let callers name the inference, to cancel its candidates."""
        self._running[inference_id] = (answers, candidate_count)
        try:
            yield
        finally:
            del self._running[inference_id]

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            place = stack.enter_async_context(self._turns.take(current_principal().tenant))
            await within_limits(place, self._clock, self._model.info.name)
            yield


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:16]}"
