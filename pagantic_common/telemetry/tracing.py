"""Distributed traces. With a collector every call records spans; without one only the ids travel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache

from opentelemetry import context, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pagantic_common.telemetry.collector import Signal, resource_of, sends, transport

TRACEPARENT_KEY = "traceparent"
TRACEPARENT_PARTS = 4
SPAN_ID_DIGITS = 16

_chosen_trace_id: ContextVar[int] = ContextVar("chosen_trace_id", default=0)


class TraceIds(RandomIdGenerator):
    """Makes random ids; a trace that begins inside `trace_scope` has the id that its caller chose."""

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        return _chosen_trace_id.get() or super().generate_trace_id()


_ids = TraceIds()
_propagator = TraceContextTextMapPropagator()


def set_up_tracing(area: str, otlp_endpoint: str) -> None:
    """Install the process's tracer provider, unless nothing takes its spans.

    Raises InvalidRequest for variables of OpenTelemetry that cannot be followed.
    """
    if not sends(Signal.TRACES, otlp_endpoint):
        return
    # Imported here: the exporter takes a second to load and most installations have no collector.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from pagantic_common.telemetry.span_exporter import WithoutErrorTexts  # noqa: PLC0415

    exporter = OTLPSpanExporter(**transport(otlp_endpoint))
    install_spans(area, BatchSpanProcessor(WithoutErrorTexts(exporter)))


def install_spans(area: str, processor: SpanProcessor) -> None:
    """Record the spans of this process from now on, and give them to a processor."""
    trace.set_tracer_provider(make_provider(area, processor))


def make_provider(area: str, processor: SpanProcessor, sampler: Sampler | None = None) -> TracerProvider:
    """Return what records spans for a processor; OTEL_TRACES_SAMPLER names the default sampler."""
    resource = resource_of(area)
    provider = TracerProvider(sampler=sampler, resource=resource, id_generator=_ids, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


def recording_tracer() -> Tracer | None:
    """Return what records spans; None where none are recorded. A program around us may have installed it."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return None
    return _tracer_of(provider)


@lru_cache(maxsize=1)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("pagantic")


def is_recording() -> bool:
    """Tell whether spans are recorded."""
    return recording_tracer() is not None


def remote_context(traceparent: str) -> context.Context:
    """Return the context of a caller's span, by its W3C header; without a header, the current one."""
    if not traceparent:
        return context.get_current()
    return _propagator.extract({TRACEPARENT_KEY: traceparent})


@contextmanager
def trace_ids(traceparent: str) -> Iterator[None]:
    """Give the work inside the ids of the caller's trace, or of a new one, without recording it."""
    caller = trace.get_current_span(remote_context(traceparent)).get_span_context()
    trace_id = caller.trace_id
    if not caller.is_valid:
        trace_id = _ids.generate_trace_id()
    with _inside(trace_id, caller.trace_flags):
        yield


def span_id_of(traceparent: str) -> str:
    """Return the span id of a W3C header, 16 hex digits; empty for none."""
    parts = traceparent.split("-")
    if len(parts) != TRACEPARENT_PARTS or len(parts[2]) != SPAN_ID_DIGITS:
        return ""
    return parts[2]


def current_traceparent() -> str:
    """Return the W3C header of the current span; empty without a span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(TRACEPARENT_KEY, "")


@contextmanager
def trace_scope(trace_id: str) -> Iterator[None]:
    """Make the work inside a trace with this id, 32 hex digits; an empty id changes nothing.

    Where spans are recorded, the next span begins the trace, and the process's own sampler decides about it.
    """
    number = int(trace_id or "0", 16)
    if not number or number == trace.get_current_span().get_span_context().trace_id:
        yield
        return
    chosen = _chosen_trace_id.set(number)
    try:
        with _apart() if is_recording() else _inside(number, trace.TraceFlags.get_default()):
            yield
    finally:
        with suppress(ValueError):
            _chosen_trace_id.reset(chosen)


@contextmanager
def _apart() -> Iterator[None]:
    """Leave the current span for the work inside."""
    token = context.attach(trace.set_span_in_context(trace.INVALID_SPAN))
    try:
        yield
    finally:
        with suppress(ValueError):
            token.var.reset(token)


@contextmanager
def _inside(trace_id: int, flags: trace.TraceFlags) -> Iterator[None]:
    span = trace.SpanContext(trace_id, _ids.generate_span_id(), is_remote=False, trace_flags=flags)
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(span)))
    try:
        yield
    finally:
        # An async generator may be finalized in another context, where its token is invalid. `context.detach` would log
        # an error with a traceback.
        with suppress(ValueError):
            token.var.reset(token)


def shut_down_tracing() -> None:
    """Send the spans that have not been sent yet."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()
