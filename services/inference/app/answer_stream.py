"""What the scheduler says of one request, as the events that its caller gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Cancelled, DeadlineExceeded, ErrorCode, Internal, InvalidRequest, Unavailable
from pagantic_common.domain.messages import ModelInfo
from pagantic_common.domain.usage import TokenUsage
from services.inference.core.answers.answer import AnswerParser
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
    FailureCause,
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
    """The events of one request; feed `put` from the event loop and read `events` once.

    Args:
        started: The first event but for what the prompt took from the cache.
        new_parser: Makes the parser of one candidate.
        candidate_count: Number of candidates.
        is_enforced: The decoder gives a tool call, so that an answer without one is malformed.
        clock: Time for the usage.
    """

    def __init__(
        self,
        *,
        started: Started,
        new_parser: Callable[[], AnswerParser],
        candidate_count: int,
        is_enforced: bool,
        clock: Clock,
    ) -> None:
        self._started = started
        self._answers = [_Answer(new_parser()) for _ in range(candidate_count)]
        self._is_enforced = is_enforced
        self._clock = clock
        self._prompted_s = 0.0
        self._arrived: list[SchedulerEvent] = []
        self._has_arrived = asyncio.Event()
        self.is_done = False

    def put(self, event: SchedulerEvent) -> None:
        """Take the scheduler's next event."""
        self._arrived.append(event)
        self._has_arrived.set()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Give the events until the request ends; the deltas of a candidate that wait together are joined.

        Raises Cancelled, DeadlineExceeded, InvalidRequest (CONSTRAINT_TOO_COMPLEX) for a constraint that the decoder
        gives up, Unavailable (INFERENCE_MODEL_UNAVAILABLE) when the engine breaks, Internal (INFERENCE_ENGINE_ERROR,
        INFERENCE_MALFORMED_RESPONSE), and RuntimeError from whatever else this request's decoding raised.
        """
        while not self.is_done:
            await self._has_arrived.wait()
            self._has_arrived.clear()
            arrived, self._arrived = self._arrived, []
            deltas: dict[int, Delta] = {}
            for event in arrived:
                if isinstance(event, Progress):
                    self._progress(event, deltas)
                    continue
                if isinstance(event, Ended):
                    end = self._end(event, deltas)
                    if (delta := deltas.pop(event.candidate, None)) is not None:
                        yield delta
                    yield end
                    continue
                for delta in deltas.values():
                    yield delta
                deltas = {}
                yield self._turn(event)
            for delta in deltas.values():
                yield delta

    def _turn(self, event: Prompted | Finished | Failed) -> Event:
        match event:
            case Prompted():
                self._prompted_s = self._clock.monotonic_s()
                self._started = replace(self._started, cached_prompt_tokens=event.cached_prompt_tokens)
                return self._started
            case Finished():
                self.is_done = True
                return Completed(self._usage(event, self._started.model), event.rows)
            case Failed():
                self.is_done = True
                raise failure_of(event)

    def _progress(self, event: Progress, deltas: dict[int, Delta]) -> None:
        for index in event.candidates:
            answer = self._answers[index]
            pieces = answer.parser.feed(event.text)
            new_tokens = event.output_tokens - answer.seen_tokens
            answer.seen_tokens = event.output_tokens
            if any(piece.reasoning for piece in pieces):
                answer.reasoning_tokens += new_tokens
            delta = _add_pieces(deltas.get(index, Delta(index)), pieces)
            delta = replace(delta, logprobs=(*delta.logprobs, *event.logprobs))
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
        return CandidateEnd(event.candidate, reason, event.output_tokens, parser.calls, event.constraint_satisfied)

    def _usage(self, event: Finished, model: ModelInfo) -> TokenUsage:
        return TokenUsage(
            prompt_tokens=self._started.prompt_tokens,
            cached_prompt_tokens=self._started.cached_prompt_tokens,
            output_tokens=event.output_tokens,
            reasoning_tokens=sum(answer.reasoning_tokens for answer in self._answers),
            context_tokens=self._started.prompt_tokens + event.longest_output,
            context_window=model.context_window,
            decode_seconds=self._clock.monotonic_s() - self._prompted_s,
        )


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


def failure_of(event: Failed) -> Exception:
    """Return the error that a failed request's caller gets."""
    match event.cause:
        case FailureCause.CANCELLED:
            return Cancelled("the caller cancelled or went away")
        case FailureCause.DEADLINE:
            return DeadlineExceeded("the deadline passed while decoding")
        case FailureCause.ENGINE:
            return Internal(event.reason, code=ErrorCode.INFERENCE_ENGINE_ERROR)
        case FailureCause.BROKEN:
            return Unavailable(f"the engine is broken: {event.reason}", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)
        case FailureCause.CONSTRAINT:
            return InvalidRequest(event.reason, code=ErrorCode.CONSTRAINT_TOO_COMPLEX)
        case FailureCause.UNEXPECTED:
            unexpected = RuntimeError("decoding of one request failed")
            unexpected.__cause__ = event.error
            return unexpected
