"""Implements Infer: prepares a request, submits it to the engine's loop, and streams its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import InvalidRequest, Overloaded, Unavailable
from pagantic_common.telemetry.scope import current_principal
from services.inference.app.answer_stream import AnswerStream
from services.inference.app.prefix_storage import Submission
from services.inference.app.preparation import Preparation
from services.inference.app.prepared_request import PreparedRequest, RequestPreparer
from services.inference.app.workload import Load
from services.inference.core.answers.call_matcher import CallForm
from services.inference.core.generation import ChatPrompt, Event, InferenceRequest, Prompt, TokenPrompt
from services.inference.core.prompts import call_constraint, call_form_constraint, shown_tools
from services.inference.core.request_check import MAX_CANDIDATES
from services.inference.core.tuning import Tuning
from services.inference.ports import ConstraintCompiler, TextEngine

# The number of prompts that each report checks. All prompts have been checked after 16 reports.
_REVIEWED = 16


class Generation:
    """A Workload that owns one model and serves Infer with it."""

    def __init__(
        self,
        *,
        submission: Submission,
        preparation: Preparation,
        requests: RequestPreparer,
        constraints: ConstraintCompiler,
        clock: Clock,
    ) -> None:
        self.submission = submission
        self.loop = submission.loop
        self.engine: TextEngine = self.loop.engine
        self.preparation = preparation
        self._requests = requests
        self._constraints = constraints
        self._clock = clock
        self._running: dict[str, tuple[int, int]] = {}

    @property
    def broken_because(self) -> str:
        """The reason that the model serves no more requests, or an empty string while it works."""
        return self.loop.broken_because

    def load(self) -> Load:
        """Return the load of the engine."""
        scheduler = self.loop.scheduler
        return Load(
            queued_requests=scheduler.waiting,
            queue_capacity=scheduler.limits.queue_capacity,
            running_sequences=scheduler.running,
            sequence_capacity=scheduler.limits.max_running,
            kv_used_tokens=scheduler.tree.used_tokens,
            kv_capacity_tokens=scheduler.tree.capacity_tokens,
            output_tokens_total=scheduler.output_tokens_total,
            computed_tokens_total=scheduler.rows_total,
            preemptions_total=scheduler.preemptions_total,
            pending_prompt_tokens=scheduler.pending_prompt_tokens,
            queued_prompt_tokens=scheduler.queued_prompt_tokens,
            refused_total=scheduler.refused_total,
            parked_bytes=scheduler.tree.parked.parked_tokens * self.engine.kv_bytes_per_token,
            looked_up_tokens_total=scheduler.looked_up.drafted,
            looked_up_accepted_total=scheduler.looked_up.accepted,
            guessed_tokens_total=scheduler.guessed.drafted,
            guessed_accepted_total=scheduler.guessed.accepted,
        )

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """The durations of recent steps in seconds, by kind of step."""
        return self.loop.scheduler.costs.load.seconds

    def cached_keys(self) -> frozenset[int]:
        """Return the callers' keys of cached prompt prefixes. Changes become visible within several calls."""
        return self.loop.cached_keys(_REVIEWED)

    def stuck_for_s(self, now_s: float) -> float:
        """Return the age of the current step in seconds, or 0 if no step is running."""
        return self.loop.stuck_for_s(now_s)

    def give_up(self, reason: str) -> None:
        """Fail all requests and reject new requests, because the thread is stuck or dead."""
        self.loop.give_up(reason)

    async def close(self) -> None:
        """Fail the remaining requests within one step, end the threads and free the model."""
        await asyncio.to_thread(self.loop.close)
        await self.preparation.close()
        await asyncio.to_thread(self._constraints.close)
        if self.loop.drafts is not None:
            self.loop.drafts.close()
        self.engine.close()

    async def retune(self, tuning: Tuning) -> None:
        """Run the engine with another tuning once no request is being decoded."""
        await asyncio.wrap_future(self.loop.when_idle(partial(self._retune, tuning)))

    def _retune(self, tuning: Tuning) -> None:
        self.engine.retune(
            threads=tuning.threads, flash_attention=tuning.flash_attention, batch_tokens=tuning.step_tokens
        )
        if self.loop.drafts is not None:
            self.loop.drafts.retune(tuning)

    def runs(self, inference_id: str) -> bool:
        """Return whether this generation is running the inference."""
        return inference_id in self._running

    def cancel_candidates(self, inference_id: str, indexes: Sequence[int]) -> None:
        """Cancel candidates of an inference that runs here. Raises InvalidRequest if an index has no candidate."""
        number, count = self._running[inference_id]
        if wrong := [index for index in indexes if not 0 <= index < count]:
            raise InvalidRequest(f"candidate {wrong[0]} does not exist: this inference has {count}")
        for index in indexes:
            self.loop.cancel_candidate(number, index)

    async def prompt_tokens(self, prompt: ChatPrompt | str) -> list[int]:
        """Return the tokens of a rendered prompt."""
        self._check_size(prompt)
        images = await self.preparation.encode_images(prompt, only_counts=True)
        return await self.preparation.run(self._requests.tokenize, prompt, images)

    async def ending_tokens(
        self, prompt: ChatPrompt | str, endings: Sequence[str]
    ) -> tuple[list[int], list[list[int]]]:
        """Return the tokens before a prompt's endings, and for each ending the tokens from the ending onwards."""
        self._check_size(prompt)
        self.preparation.check_text("an ending of the prompt", max(endings, key=len))
        return await self.preparation.run(self._requests.tokenize_endings, prompt, endings)

    async def count_chat(self, prompt: ChatPrompt) -> int:
        """Return the number of tokens of a rendered conversation."""
        return len(await self.prompt_tokens(prompt))

    def shared_length(self, tokens: Sequence[int]) -> int:
        """Return the length of the prompt's prefix that all tenants share in the cache."""
        return self._requests.shared_length(tokens)

    def check_candidate_count(self, count: int) -> None:
        """Raise InvalidRequest if the number of candidates is out of range."""
        if not 1 <= count <= MAX_CANDIDATES:
            raise InvalidRequest(f"candidate_count is {count}: it must be between 1 and {MAX_CANDIDATES}")

    async def infer(self, request: InferenceRequest) -> AsyncGenerator[Event, None]:
        """Stream the events of one request. Closing the generator stops decoding within one step."""
        started_s = self._clock.monotonic_s()
        self.check_candidate_count(request.candidate_count)
        self.loop.check_capacity(current_principal().tenant)
        self._check_size(request.prompt)
        prepared = await self._prepare(request)
        stream = AnswerStream(
            started=prepared.started,
            form=prepared.form,
            candidate_count=request.candidate_count,
            clock=self._clock,
            started_s=started_s,
        )
        number = await self.submission.submit(prepared.decode, stream.put)
        self._running[prepared.started.inference_id] = (number, request.candidate_count)
        try:
            async with aclosing(stream.events()) as events:
                async for event in events:
                    yield event
        finally:
            del self._running[prepared.started.inference_id]
            self.loop.cancel(number)

    async def _prepare(self, request: InferenceRequest) -> PreparedRequest:
        constraint = request.constraint
        if isinstance(request.prompt, ChatPrompt) and request.prompt.tool_choice.is_enforced:
            if constraint is not None:
                raise InvalidRequest("a constraint and an enforced tool_choice cannot both bind the output")
            constraint = await self.preparation.run(call_constraint, request.prompt)
        matcher = offered_call = None
        if constraint is not None:
            matcher = await self._constraints.start(constraint)
        elif isinstance(request.prompt, ChatPrompt) and shown_tools(request.prompt):
            offered_call = await self._offered_call(request.prompt)
        images = await self.preparation.encode_images(request.prompt)
        return await self.preparation.run(self._requests.prepare, request, matcher, images, offered_call)

    async def _offered_call(self, prompt: ChatPrompt) -> CallForm | None:
        """Return the form of a call that the model may make.

        Arguments that the decoder cannot hold to their schemas stay free. Returns None if the decoder can hold nothing
        now, because a request that demands no call must not fail for it.
        """
        for constraint_of, holds_arguments in ((call_constraint, True), (call_form_constraint, False)):
            constraint = await self.preparation.run(constraint_of, prompt, self._requests.arguments_key)
            with suppress(InvalidRequest, Overloaded, Unavailable):
                return CallForm(await self._constraints.start(constraint), holds_arguments)
        return None

    def _check_size(self, prompt: Prompt) -> None:
        match prompt:
            case str():
                self.preparation.check_text("the prompt", prompt)
            case ChatPrompt():
                self.preparation.check_text("the prompt", *prompt.texts())
            case TokenPrompt():
                self.preparation.check_tokens("the prompt", prompt.tokens)
