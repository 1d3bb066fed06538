"""Turns the scheduler's events of one request into the events of its caller."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.answering.request_times import RequestTimes
from services.inference.core.answers.answer import AnswerForm, AnswerParser
from services.inference.core.answers.answer_text import Piece
from services.inference.core.generation import (
    CandidateEnd,
    Completed,
    Delta,
    Event,
    FinishReason,
    Started,
    ToolCallDelta,
)
from services.inference.core.scheduling.branches import (
    Ended,
    Failed,
    Finished,
    Progress,
    Prompted,
    SchedulerEvent,
)


@dataclass(slots=True)
class _Answer:
    parser: AnswerParser
    seen_tokens: int = 0
    reasoning_tokens: int = 0


class AnswerStream:
    """The events of one request; call `put` on the event loop, and read `events` once.

    Args:
        started: The first event; the scheduler adds the cached tokens of the prompt.
        form: How the answers are written.
        candidate_count: Number of candidates.
        clock: Time for the usage.
        came_s: When the request came, monotonic seconds.
    """

    def __init__(
        self, *, started: Started, form: AnswerForm, candidate_count: int, clock: Clock, came_s: float
    ) -> None:
        self._started = started
        self._is_enforced = form.is_enforced
        self._answers = [_Answer(_new_parser(form)) for _ in range(candidate_count)]
        self._clock = clock
        self._times = RequestTimes(came_s, clock.monotonic_s())
        self._arrived: list[SchedulerEvent] = []
        self._has_arrived = asyncio.Event()
        self.is_done = False

    def put(self, event: SchedulerEvent) -> None:
        """Take the scheduler's next event."""
        if isinstance(event, Prompted):
            self._times.prompted_s = self._clock.monotonic_s()
        self._arrived.append(event)
        self._has_arrived.set()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events until the request ends; waiting deltas of a candidate are joined.

        Raises Cancelled, DeadlineExceeded, InvalidRequest (CONSTRAINT_TOO_COMPLEX) when the decoder gives up the
        constraint, Unavailable (INFERENCE_MODEL_UNAVAILABLE) when the engine breaks, Internal (INFERENCE_ENGINE_ERROR,
        INFERENCE_MALFORMED_RESPONSE), and RuntimeError for any other error in this request's decoding.
        """
        with self._times.recorded(self._started.model.name, self._clock):
            while not self.is_done:
                await self._has_arrived.wait()
                self._has_arrived.clear()
                arrived, self._arrived = self._arrived, []
                for event in self._join(arrived):
                    yield event

    def _join(self, arrived: Sequence[SchedulerEvent]) -> Iterator[Event]:
        """Yield the caller's events for those of the scheduler, with one delta per candidate and run of progress."""
        deltas: dict[int, Delta] = {}
        for event in arrived:
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
            delta = _add_pieces(deltas.get(index, Delta(index)), pieces)
            delta = replace(delta, logprobs=(*delta.logprobs, *event.logprobs), tokens=(*delta.tokens, *event.tokens))
            if replace(delta, output_tokens=0) != Delta(index):
                deltas[index] = replace(delta, output_tokens=event.output_tokens)

    def _end(self, event: Ended, deltas: dict[int, Delta]) -> CandidateEnd:
        parser = self._answers[event.candidate].parser
        if pieces := parser.finish():
            deltas[event.candidate] = _add_pieces(deltas.get(event.candidate, Delta(event.candidate)), pieces)
        reason = event.finish_reason
        if reason is FinishReason.STOP and (parser.is_broken or (self._is_enforced and not parser.calls)):
            raise Internal("the model's tool call cannot be read", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)
        if reason is not FinishReason.CANCELLED and parser.calls and not parser.is_broken:
            reason = FinishReason.TOOL
        return CandidateEnd(
            event.candidate,
            reason,
            event.output_tokens,
            parser.calls,
            event.constraint_satisfied,
            event.matched_stop,
        )

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


def _add_pieces(delta: Delta, pieces: list[Piece]) -> Delta:
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
    return replace(
        delta,
        content=delta.content + "".join(piece.content for piece in pieces),
        reasoning=delta.reasoning + "".join(piece.reasoning for piece in pieces),
        tool_calls=tuple(calls),
    )
