"""Records calls of other services as spans and measurements; model calls follow the conventions for generative AI.

Tenants choose the names of collections, and callers may invent names of models. Both would make the number of label
values unbounded, so metrics name the answering model and omit the collection.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from opentelemetry.metrics import Histogram
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry import genai
from pagantic_common.telemetry.genai import Operation, TokenType
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_histogram
from pagantic_common.telemetry.names import (
    ERROR_TYPE,
    ORCHESTRATOR_RETRIEVAL_DURATION,
    ORCHESTRATOR_TOOL_DURATION,
    ORCHESTRATOR_VALIDATION_DURATION,
    VALIDATION_VALID,
)
from pagantic_common.telemetry.scope import current_scope
from pagantic_common.telemetry.tracing import Attributes, error_type_of, note_error, span
from services.orchestrator.app.recording.observing import variant_labels
from services.orchestrator.app.services import (
    BuildContext,
    Call,
    CallTool,
    Compile,
    CompileRules,
    Draw,
    Embed,
    Generate,
    Perform,
    Rerank,
    Retrieve,
    Score,
    ScoreLabels,
    ScorePairs,
    Sink,
    Validate,
)
from services.orchestrator.core.model.response import CandidateOutput, InferenceDelta, InferenceOutput, ToolCallRecord

UNKNOWN = "_OTHER"
WritableAttributes = dict[str, AttributeValue]

retrieval_duration = make_histogram(
    ORCHESTRATOR_RETRIEVAL_DURATION, "how long retrievals took that ended", unit="s", bounds=DURATION_BOUNDS_S
)
tool_duration = make_histogram(
    ORCHESTRATOR_TOOL_DURATION, "how long tool calls took that ended", unit="s", bounds=DURATION_BOUNDS_S
)
validation_duration = make_histogram(
    ORCHESTRATOR_VALIDATION_DURATION, "how long validations took that ended", unit="s", bounds=DURATION_BOUNDS_S
)

_SAMPLING = {
    "top_k": genai.REQUEST_TOP_K,
    "frequency_penalty": genai.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": genai.REQUEST_PRESENCE_PENALTY,
}


async def observe(perform: Perform, call: Call[Any], sink: Sink[Any]) -> Any:
    """Make a call inside its span, and measure it. Calls that only count or list have no separate span."""
    observer = _OBSERVERS.get(type(call))
    if observer is None:
        return await perform(call, sink)
    return await observer(perform, call, sink)


async def _observe_scores(perform: Perform, call: Any, sink: Sink[Any]) -> Any:
    name = Operation.EMBEDDINGS if isinstance(call, Embed) else Operation.DECIDE
    with _operation(name, call.used_model, {}) as observed:
        scores = await perform(call, sink)
        observed.note(getattr(scores, "model", ""), scores.usage)
    return scores


async def _observe_retrieval(perform: Perform, call: BuildContext | Retrieve, sink: Sink[Any]) -> Any:
    attributes = {
        genai.OPERATION_NAME: Operation.RETRIEVAL.value,
        genai.PROVIDER_NAME: genai.PROVIDER,
        genai.DATA_SOURCE_ID: call.policy.collection,
    }
    name = f"{Operation.RETRIEVAL.value} {call.policy.collection}".rstrip()
    with _measured(name, attributes, retrieval_duration, {}, kind=SpanKind.CLIENT):
        return await perform(call, sink)


async def _observe_compilation(perform: Perform, call: Call[Any], sink: Sink[Any]) -> Any:
    with span("compile"):
        return await perform(call, sink)


async def _observe_reranking(perform: Perform, call: Rerank, sink: Sink[Any]) -> Any:
    with span("rerank"):
        return await perform(call, sink)


async def _observe_inference(perform: Perform, call: Generate, sink: Sink[InferenceDelta]) -> InferenceOutput:
    attributes = {**_request_attributes(call), genai.REQUEST_STREAM: True}
    with _operation(Operation.CHAT, call.hints.model, attributes) as observed:

        async def note(delta: InferenceDelta) -> None:
            observed.note(delta.model, delta.usage)
            observed.note_chunk()
            try:
                await sink(delta)
            except BaseException as error:
                observed.stopped_by = error
                raise

        output: InferenceOutput = await perform(call, note)
        observed.note(output.model, output.usage, output.finish_reason.value)
        observed.note_chunk()
    return output


async def _observe_vote(perform: Perform, call: Draw, sink: Sink[CandidateOutput | TokenUsage]) -> None:
    attributes = {**_request_attributes(call), genai.REQUEST_CHOICE_COUNT: call.command.voting.n}
    with _operation(Operation.CHAT, call.hints.model, attributes) as observed:

        async def note(item: CandidateOutput | TokenUsage) -> None:
            if isinstance(item, TokenUsage):
                observed.note("", item)
            else:
                observed.note(item.output.model, observed.usage, item.output.finish_reason.value)
            try:
                await sink(item)
            except BaseException as error:
                observed.stopped_by = error
                raise

        await perform(call, note)


async def _observe_validation(perform: Perform, call: Validate, sink: Sink[Any]) -> Any:
    labels = dict(variant_labels())
    with _measured("validate", {}, validation_duration, labels) as opened:
        enforcement = await perform(call, sink)
        opened.set_attribute(VALIDATION_VALID, enforcement.valid)
        labels[VALIDATION_VALID] = str(enforcement.valid).lower()
    return enforcement


async def _observe_tool_call(perform: Perform, call: CallTool, sink: Sink[Any]) -> ToolCallRecord:
    name = call.call.name
    attributes: Attributes = {
        genai.OPERATION_NAME: Operation.EXECUTE_TOOL.value,
        genai.TOOL_NAME: name,
        genai.TOOL_TYPE: "function",
        genai.TOOL_CALL_ID: call.call.id,
    }
    labels = {genai.TOOL_NAME: name}
    with _measured(f"{Operation.EXECUTE_TOOL.value} {name}", attributes, tool_duration, labels) as opened:
        record: ToolCallRecord = await perform(call, sink)
        if record.is_error:
            labels[ERROR_TYPE] = record.error_code.value if record.error_code is not None else UNKNOWN
            note_error(opened, labels[ERROR_TYPE])
    return record


_OBSERVERS: Mapping[type[Call[Any]], Callable[[Perform, Any, Sink[Any]], Awaitable[Any]]] = MappingProxyType(
    {
        Generate: _observe_inference,
        Draw: _observe_vote,
        Score: _observe_scores,
        ScoreLabels: _observe_scores,
        ScorePairs: _observe_scores,
        Embed: _observe_scores,
        Validate: _observe_validation,
        CallTool: _observe_tool_call,
        BuildContext: _observe_retrieval,
        Retrieve: _observe_retrieval,
        Rerank: _observe_reranking,
        Compile: _observe_compilation,
        CompileRules: _observe_compilation,
    }
)


def _request_attributes(call: Generate | Draw) -> WritableAttributes:
    command, hints = call.command, call.hints
    temperature = hints.temperature if command.temperature is None else command.temperature
    optional = {
        genai.REQUEST_SEED: command.seed,
        genai.REQUEST_TEMPERATURE: temperature,
        genai.REQUEST_TOP_P: hints.top_p,
        genai.REQUEST_MAX_TOKENS: hints.max_tokens or None,
    }
    attributes: WritableAttributes = {name: value for name, value in optional.items() if value is not None}
    for parameter, name in _SAMPLING.items():
        if parameter in hints.sampling:
            attributes[name] = float(hints.sampling[parameter])
    attributes[genai.OUTPUT_TYPE] = "json" if command.engine_text else "text"
    return attributes


@contextmanager
def _measured(
    name: str,
    attributes: Attributes,
    duration: Histogram,
    labels: dict[str, str],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Iterator[Span]:
    """Record the enclosed work as a span, and its duration with `labels`. The work may add labels."""
    began_s = time.monotonic()
    with span(name, attributes, kind=kind) as opened:
        try:
            yield opened
        except BaseException as error:
            labels[ERROR_TYPE] = error_type_of(error)
            raise
        finally:
            duration.record(time.monotonic() - began_s, labels)


class _ObservedOperation:
    """A running call of a model.

    Attributes:
        labels: The labels of the call's metrics.
        usage: The usage of the call so far.
        stopped_by: The error with which the receiver of a piece ended the call; not a failure of the model.
    """

    def __init__(self, name: Operation) -> None:
        self.labels: WritableAttributes = {genai.OPERATION_NAME: name.value, genai.PROVIDER_NAME: genai.PROVIDER}
        self.labels |= variant_labels()
        self.usage = TokenUsage()
        self.stopped_by: BaseException | None = None
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
def _operation(name: Operation, model: str, attributes: Attributes) -> Iterator[_ObservedOperation]:
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
    stopped_by: BaseException | None = None
    with span(f"{name.value} {model}".rstrip(), span_attributes, kind=SpanKind.CLIENT) as opened:
        observed = _ObservedOperation(name)
        try:
            yield observed
        except BaseException as error:
            if error is not observed.stopped_by:
                observed.labels[ERROR_TYPE] = error_type_of(error)
                raise
            stopped_by = error
        finally:
            observed.end(opened)
    if stopped_by is not None:  # Raised outside the span, which would record it as a failure.
        raise stopped_by
