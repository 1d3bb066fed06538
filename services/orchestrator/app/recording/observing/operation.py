"""Records one call of a model as a span and measurements, by the conventions for generative AI."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry import genai
from pagantic_common.telemetry.genai import Operation, TokenType
from pagantic_common.telemetry.names import ERROR_TYPE
from pagantic_common.telemetry.scope import current_scope
from pagantic_common.telemetry.tracing import Attributes, error_type_of, span
from services.orchestrator.app.recording.observing.experiment import variant_labels

WritableAttributes = dict[str, AttributeValue]


class ObservedOperation:
    """A running call of a model.

    The labels of the call's metrics name the model that answered. The model name in a request may be made up, which
    would make the number of label values unbounded.

    Attributes:
        labels: The labels of the call's metrics.
        usage: The usage of the call so far.
    """

    def __init__(self, name: Operation) -> None:
        self.labels: WritableAttributes = {genai.OPERATION_NAME: name.value, genai.PROVIDER_NAME: genai.PROVIDER}
        self.labels |= variant_labels()
        self.usage = TokenUsage()
        self._reasons: list[str] = []
        self._began_s = time.monotonic()
        self._first_chunk_s: float | None = None
        self._last_chunk_s = 0.0

    def note_chunk(self) -> None:
        """Record the arrival of a chunk of the answer."""
        now_s = time.monotonic()
        if self._first_chunk_s is None:
            self._first_chunk_s = now_s - self._began_s
        else:
            genai.client_output_chunk.record(now_s - self._last_chunk_s, self.labels)
        self._last_chunk_s = now_s

    def note(self, model: str, usage: TokenUsage, finish_reason: str = "") -> None:
        """Record the answering model, the usage so far, and the finish reason of an answer."""
        if model:
            self.labels[genai.RESPONSE_MODEL] = model
        self.usage = usage
        if finish_reason:
            self._reasons.append(finish_reason.lower())

    def end(self, opened: Span) -> None:
        """Complete the span, and record the measurements."""
        ended_s = time.monotonic()
        usage = self.usage
        if opened.is_recording():
            opened.set_attributes(self._response_attributes())
        if self._first_chunk_s is not None:
            genai.client_first_chunk.record(self._first_chunk_s, self.labels)
        for kind, count in ((TokenType.INPUT, usage.prompt_tokens), (TokenType.OUTPUT, usage.output_tokens)):
            if count:
                genai.client_tokens.record(count, {**self.labels, genai.TOKEN_TYPE: kind.value})
        genai.client_duration.record(ended_s - self._began_s, self.labels)

    def _response_attributes(self) -> WritableAttributes:
        usage = self.usage
        attributes: WritableAttributes = {
            genai.USAGE_INPUT_TOKENS: usage.prompt_tokens,
            genai.USAGE_OUTPUT_TOKENS: usage.output_tokens,
            genai.USAGE_CACHE_READ_INPUT_TOKENS: usage.cached_prompt_tokens,
            genai.USAGE_REASONING_OUTPUT_TOKENS: usage.reasoning_tokens,
        }
        if genai.RESPONSE_MODEL in self.labels:
            attributes[genai.RESPONSE_MODEL] = self.labels[genai.RESPONSE_MODEL]
        if self._reasons:
            attributes[genai.RESPONSE_FINISH_REASONS] = self._reasons
        if self._first_chunk_s is not None:
            attributes[genai.RESPONSE_TIME_TO_FIRST_CHUNK] = self._first_chunk_s
        return attributes


@contextmanager
def operation(name: Operation, model: str, attributes: Attributes) -> Iterator[ObservedOperation]:
    """Observe a call of the requested model. An empty name selects the default model."""
    span_attributes: WritableAttributes = {
        genai.OPERATION_NAME: name.value,
        genai.PROVIDER_NAME: genai.PROVIDER,
        **attributes,
    }
    if model:
        span_attributes[genai.REQUEST_MODEL] = model
    if session_id := current_scope().session_id:
        span_attributes[genai.CONVERSATION_ID] = session_id
    with span(f"{name.value} {model}".rstrip(), span_attributes, kind=SpanKind.CLIENT) as opened:
        observed = ObservedOperation(name)
        try:
            yield observed
        except GeneratorExit:  # The caller closed the stream, which is not a failure.
            raise
        except BaseException as error:
            observed.labels[ERROR_TYPE] = error_type_of(error)
            raise
        finally:
            observed.end(opened)
