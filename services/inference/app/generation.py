"""Implements Infer: prepares a request, submits it to the engine's loop, and streams its events."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, Overloaded, Unavailable
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry import genai
from pagantic_common.telemetry.genai import Operation
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_counter, make_histogram
from pagantic_common.telemetry.names import (
    ERROR_TYPE,
    INFERENCE_CACHED_PROMPT_TOKENS,
    INFERENCE_DECODE_SPAN,
    INFERENCE_PREFILL_SPAN,
    INFERENCE_PROMPT_TOKENS,
    INFERENCE_QUEUE_DURATION,
    INFERENCE_QUEUE_SPAN,
)
from pagantic_common.telemetry.scope import current_principal
from pagantic_common.telemetry.tracing import CANCELLED, Attributes, error_type_of, record_span
from services.inference.app.prefix_storage import Submission
from services.inference.app.preparation import Preparation
from services.inference.app.prepared_request import PreparedRequest, RequestPreparer
from services.inference.app.workload import Load
from services.inference.core.answers.answer import AnswerForm, AnswerParser
from services.inference.core.answers.answer_text import Piece
from services.inference.core.answers.call_matcher import CallForm
from services.inference.core.generation import (
    CandidateEnd,
    ChatPrompt,
    Completed,
    Delta,
    Event,
    FinishReason,
    InferenceRequest,
    Prompt,
    Started,
    TokenPrompt,
    ToolCallDelta,
)
from services.inference.core.prompts import call_constraint, call_form_constraint, shown_tools
from services.inference.core.request_check import MAX_CANDIDATES
from services.inference.core.scheduling.branches import Ended, Failed, Finished, Progress, Prompted, SchedulerEvent
from services.inference.core.tuning import Tuning
from services.inference.ports import ConstraintCompiler, TextEngine

prompt_tokens = make_counter(INFERENCE_PROMPT_TOKENS, "Tokens of the prompts that were processed")
cached_prompt_tokens = make_counter(INFERENCE_CACHED_PROMPT_TOKENS, "Tokens of prompts that the cache had")
queue_duration = make_histogram(
    INFERENCE_QUEUE_DURATION, "how long requests waited for their first step", unit="s", bounds=DURATION_BOUNDS_S
)


@dataclass(slots=True)
class RequestTimes:
    """The phases of a request, in monotonic seconds, and its token counts.

    Attributes:
        started_s: The time when the request arrived.
        queued_s: The time when the request was ready for the engine's loop.
        seated_s: The time when the request got a seat, or None before that.
        prompted_s: The time when the prompt was processed, which yields the first token.
        completed_s: The time when the last token was decoded, or None before that and after a failure.
        prompt_tokens: The number of tokens in the prompt.
        cached_tokens: The number of prompt tokens that were in the cache.
        output_tokens: The total number of tokens of all candidates so far.
        longest_output: The number of tokens of the longest candidate so far.
    """

    started_s: float
    queued_s: float
    seated_s: float | None = None
    prompted_s: float | None = None
    completed_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    longest_output: int = 0

    @contextmanager
    def recorded(self, model: str, clock: Clock) -> Iterator[None]:
        """Record the phases of the request as spans and metrics when the block ends.

        The answer is complete once `completed_s` is set, even if the reader then leaves because of an error.
        """
        error_type = ""
        try:
            yield
        except GeneratorExit:
            error_type = CANCELLED
            raise
        except BaseException as error:
            error_type = error_type_of(error)
            raise
        finally:
            if self.completed_s is None:
                self._record(model, clock.monotonic_s(), error_type)
            else:
                self._record(model, self.completed_s, "")

    def _record(self, model: str, ended_s: float, error_type: str) -> None:
        labels = {
            genai.OPERATION_NAME: Operation.CHAT.value,
            genai.PROVIDER_NAME: genai.PROVIDER,
            genai.RESPONSE_MODEL: model,
        }
        if error_type:
            labels[ERROR_TYPE] = error_type
        genai.server_duration.record(ended_s - self.started_s, labels)
        self._measure(labels, ended_s, has_failed=bool(error_type))
        self._record_spans(ended_s, error_type)

    def _measure(self, labels: dict[str, str], ended_s: float, *, has_failed: bool) -> None:
        queued_s = (self.seated_s or ended_s) - self.queued_s
        queue_duration.record(queued_s, {genai.RESPONSE_MODEL: labels[genai.RESPONSE_MODEL]})
        if self.prompted_s is None:
            return
        prompt_tokens.add(self.prompt_tokens)
        cached_prompt_tokens.add(self.cached_tokens)
        if has_failed:
            return
        genai.server_first_token.record(self.prompted_s - self.started_s, labels)
        if self.longest_output > 1:
            per_token_s = (ended_s - self.prompted_s) / (self.longest_output - 1)
            genai.server_output_token.record(per_token_s, labels)

    def _record_spans(self, ended_s: float, error_type: str) -> None:
        begins: tuple[tuple[str, float | None, Attributes], ...] = (
            (INFERENCE_QUEUE_SPAN, self.queued_s, {}),
            (INFERENCE_PREFILL_SPAN, self.seated_s, self._prefill_attributes()),
            (INFERENCE_DECODE_SPAN, self.prompted_s, {genai.USAGE_OUTPUT_TOKENS: self.output_tokens}),
        )
        phases = [(name, begun_s, attributes) for name, begun_s, attributes in begins if begun_s is not None]
        ends = [begun_s for _, begun_s, _ in phases[1:]] + [ended_s]
        for position, ((name, begun_s, attributes), phase_ended_s) in enumerate(
            zip(phases, ends, strict=True), start=1
        ):
            is_last = position == len(phases)
            record_span(name, begun_s, phase_ended_s, attributes, error_type=error_type if is_last else "")

    def _prefill_attributes(self) -> dict[str, int]:
        return {
            genai.USAGE_INPUT_TOKENS: self.prompt_tokens,
            genai.USAGE_CACHE_READ_INPUT_TOKENS: self.cached_tokens,
        }


@dataclass(slots=True)
class _Answer:
    parser: AnswerParser
    seen_tokens: int = 0
    reasoning_tokens: int = 0


class AnswerStream:
    """The events of one request. Call `put` on the event loop, and iterate over `events` only once.

    Args:
        started: The first event. It lacks the number of cached prompt tokens, which the scheduler counts.
        form: The form of the answers.
        candidate_count: The number of candidates.
        clock: The clock for the usage.
        started_s: The time when the request arrived, in monotonic seconds.
    """

    def __init__(
        self, *, started: Started, form: AnswerForm, candidate_count: int, clock: Clock, started_s: float
    ) -> None:
        self._started = started
        self._form = form
        self._answers = [_Answer(_new_parser(form)) for _ in range(candidate_count)]
        self._clock = clock
        self._times = RequestTimes(started_s, clock.monotonic_s())
        self._pending: list[SchedulerEvent] = []
        self._has_pending = asyncio.Event()
        self.is_done = False

    def put(self, event: SchedulerEvent) -> None:
        """Add the next event from the scheduler."""
        if isinstance(event, Prompted):
            self._times.prompted_s = self._clock.monotonic_s()
        self._pending.append(event)
        self._has_pending.set()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events until the request ends. Merges the pending deltas of a candidate into one delta.

        Raises Cancelled, DeadlineExceeded, and Internal (INFERENCE_ENGINE_ERROR, INFERENCE_MALFORMED_RESPONSE). Raises
        InvalidRequest (CONSTRAINT_TOO_COMPLEX) if the decoder gives up on the constraint, and Unavailable
        (INFERENCE_MODEL_UNAVAILABLE) if the engine breaks. Raises RuntimeError if any other error occurs while this
        request is decoded.
        """
        with self._times.recorded(self._started.model.name, self._clock):
            while not self.is_done:
                await self._has_pending.wait()
                self._has_pending.clear()
                pending, self._pending = self._pending, []
                for event in self._join(pending):
                    yield event

    def _join(self, pending: Sequence[SchedulerEvent]) -> Iterator[Event]:
        """Yield the caller's events for the pending events. Consecutive progress becomes one delta per candidate."""
        deltas: dict[int, Delta] = {}
        for event in pending:
            match event:
                case Progress():
                    self._progress(event, deltas)
                case Ended():
                    end = self._end(event, deltas)
                    if event.candidate in deltas:
                        yield deltas.pop(event.candidate)
                    yield end
                case _:
                    yield from deltas.values()
                    deltas = {}
                    yield self._turn(event)
        yield from deltas.values()

    def _turn(self, event: Prompted | Finished | Failed) -> Event:
        match event:
            case Prompted():
                self._times.seated_s = event.seated_s
                self._times.prompt_tokens = self._started.prompt_tokens
                self._times.cached_tokens = event.cached_prompt_tokens
                self._started = replace(self._started, cached_prompt_tokens=event.cached_prompt_tokens)
                return self._started
            case Finished():
                self.is_done = True
                self._times.completed_s = self._clock.monotonic_s()
                return Completed(self._usage(event), event.rows)
            case Failed():
                self.is_done = True
                raise event.to_error()

    def _progress(self, event: Progress, deltas: dict[int, Delta]) -> None:
        for index in event.candidates:
            answer = self._answers[index]
            pieces = answer.parser.feed(event.text)
            new_tokens = event.output_tokens - answer.seen_tokens
            answer.seen_tokens = event.output_tokens
            self._times.output_tokens += new_tokens
            self._times.longest_output = max(self._times.longest_output, event.output_tokens)
            if any(piece.reasoning for piece in pieces):
                answer.reasoning_tokens += new_tokens
            if pieces or event.logprobs or event.tokens:
                deltas[index] = _extended(deltas.get(index) or Delta(index), pieces, event)

    def _end(self, event: Ended, deltas: dict[int, Delta]) -> CandidateEnd:
        parser = self._answers[event.candidate].parser
        if pieces := parser.finish():
            deltas[event.candidate] = _extended(deltas.get(event.candidate) or Delta(event.candidate), pieces)
        # If calls are only offered, the matcher is satisfied by the calls that it held.
        is_satisfied, form = event.constraint_satisfied, self._form
        return CandidateEnd(
            event.candidate,
            self._finish_reason(event, parser),
            event.output_tokens,
            parser.calls,
            is_satisfied and not form.only_offers_calls,
            event.matched_stop,
            calls_held=is_satisfied and form.holds_arguments and bool(parser.calls),
        )

    def _finish_reason(self, event: Ended, parser: AnswerParser) -> FinishReason:
        is_call_missing = parser.is_broken or (self._form.is_enforced and not parser.calls)
        was_stopped = isinstance(event.matched_stop, str)  # the caller's stop text may cut off a call
        if event.finish_reason is FinishReason.STOP and is_call_missing and not was_stopped:
            raise Internal("the model's tool call cannot be read", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)
        if event.finish_reason is not FinishReason.CANCELLED and parser.calls and not parser.is_broken:
            return FinishReason.TOOL
        return event.finish_reason

    def _usage(self, event: Finished) -> TokenUsage:
        return TokenUsage(
            prompt_tokens=self._started.prompt_tokens,
            cached_prompt_tokens=self._started.cached_prompt_tokens,
            output_tokens=event.output_tokens,
            reasoning_tokens=sum(answer.reasoning_tokens for answer in self._answers),
            context_tokens=self._started.prompt_tokens + event.longest_output,
            context_window=self._started.model.context_window,
            decode_seconds=self._clock.monotonic_s() - (self._times.prompted_s or 0.0),
        )


def _new_parser(form: AnswerForm) -> AnswerParser:
    return AnswerParser(form.dialect, form.tool_names, is_enforced=form.is_enforced, new_call_id=_new_call_id)


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:16]}"


def _extended(delta: Delta, pieces: list[Piece], progress: Progress | None = None) -> Delta:
    """Extend a delta by pieces, and by the tokens and counts of the progress event that produced the pieces."""
    calls = list(delta.tool_calls)
    for piece in pieces:
        call = piece.tool_call
        if call is None:
            continue
        if calls and calls[-1].index == call.index and not call.name:
            before = calls[-1]
            calls[-1] = ToolCallDelta(before.index, before.id, before.name, before.arguments_json + call.arguments_json)
        else:
            calls.append(call)
    logprobs, tokens, output_tokens = delta.logprobs, delta.tokens, delta.output_tokens
    if progress is not None:
        logprobs, tokens = logprobs + progress.logprobs, tokens + progress.tokens
        output_tokens = progress.output_tokens
    return Delta(
        delta.candidate_index,
        content=delta.content + "".join([piece.content for piece in pieces]),
        reasoning=delta.reasoning + "".join([piece.reasoning for piece in pieces]),
        tool_calls=tuple(calls),
        logprobs=logprobs,
        output_tokens=output_tokens,
        tokens=tokens,
    )


# The number of prompts that each report checks, so that 16 reports check all prompts.
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
        """The reason why the model no longer serves requests, or an empty string while it works."""
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
        """Return the callers' keys of cached prompt prefixes. A change may become visible only after several calls."""
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
        """Switch the engine to another tuning once no request is being decoded."""
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

        Arguments are unconstrained if the decoder cannot enforce their schemas. Returns None if the decoder cannot
        constrain calls at all, because a request that does not require a call must not fail.
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
