"""The times of one request, as spans of its queue, prefill and decode, and as metrics of a model server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pagantic_common.domain.clock import Clock
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
from pagantic_common.telemetry.spans import CANCELLED, Attributes, error_type_of, record_span

prompt_tokens = make_counter(INFERENCE_PROMPT_TOKENS, "Tokens of the prompts that were processed")
cached_prompt_tokens = make_counter(INFERENCE_CACHED_PROMPT_TOKENS, "Tokens of prompts that the cache had")
queue_duration = make_histogram(
    INFERENCE_QUEUE_DURATION, "how long requests waited for their first step", unit="s", bounds=DURATION_BOUNDS_S
)


@dataclass(slots=True)
class RequestTimes:
    """When a request came, got its place, had its prompt processed, and ended, in monotonic seconds.

    Attributes:
        came_s: When it came.
        queued_s: When it was ready for the engine's loop.
        seated_s: When its wait ended; None where it never got a place.
        prompted_s: When its prompt was processed, which gives the first token, too.
        completed_s: When its last token came; None while it is answered, and where it fails.
        prompt_tokens: The tokens of its prompt.
        cached_tokens: How many of them were in the cache.
        output_tokens: The tokens of all its candidates so far.
        longest_output: The tokens of its longest candidate so far.
    """

    came_s: float
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
        """Record the phases of the request that is answered inside, and how long they took.

        A reader that leaves with the last event may do so by an error; the answer is complete all the same.
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
        genai.server_duration.record(ended_s - self.came_s, labels)
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
        genai.server_first_token.record(self.prompted_s - self.came_s, labels)
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
