"""Distributed traces. With a collector every call records spans; without one only the ids travel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pagantic_common.telemetry.collector import is_plain
from pagantic_common.telemetry.span_exporter import WithoutErrorTexts

TRACEPARENT_KEY = "traceparent"
TRACEPARENT_PARTS = 4
SPAN_ID_DIGITS = 16

_ids = RandomIdGenerator()
_propagator = TraceContextTextMapPropagator()


def set_up_tracing(area: str, otlp_endpoint: str) -> None:
    """Install the process's tracer provider, unless the endpoint is empty."""
    if not otlp_endpoint:
        return
    # Imported here: the exporter takes a second to load and most installations have no collector.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": f"pagantic-{area}"}), shutdown_on_exit=False)
    exporter = WithoutErrorTexts(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=is_plain(otlp_endpoint)))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def is_recording() -> bool:
    """Tell whether spans are recorded. Recording costs a third of a millisecond of processor time per call."""
    return isinstance(trace.get_tracer_provider(), TracerProvider)


@contextmanager
def call_scope(traceparent: str) -> Iterator[None]:
    """Give the work inside a span in the caller's trace, or in a new trace; recorded calls have one already."""
    if is_recording():
        yield
        return
    caller = _caller_of(traceparent)
    trace_id = caller.trace_id
    if not caller.is_valid:
        trace_id = _ids.generate_trace_id()
    with _inside(trace_id, caller.trace_flags, is_remote=False):
        yield


def _caller_of(traceparent: str) -> trace.SpanContext:
    """Return the span of a W3C header; the current span without a header."""
    if not traceparent:
        return trace.get_current_span().get_span_context()
    caller_context = _propagator.extract({TRACEPARENT_KEY: traceparent})
    return trace.get_current_span(caller_context).get_span_context()


def span_id_of(traceparent: str) -> str:
    """Return the span id of a W3C header, 16 hex digits; empty for none."""
    parts = traceparent.split("-")
    if len(parts) != TRACEPARENT_PARTS or len(parts[2]) != SPAN_ID_DIGITS:
        return ""
    return parts[2]


def current_traceparent() -> str:
    """Return the W3C header of the current span; empty without a span. Recorded calls carry the header themselves."""
    carrier: dict[str, str] = {}
    if not is_recording():
        _propagator.inject(carrier)
    return carrier.get(TRACEPARENT_KEY, "")


@contextmanager
def trace_scope(trace_id: str) -> Iterator[None]:
    """Make the work inside part of the trace with this id, 32 hex digits; an empty id changes nothing.

    Callers choose the id, and the process's own sampler decides whether the trace is recorded.
    """
    if not trace_id:
        yield
        return
    number = int(trace_id, 16)
    with _inside(number, _flags_of(number), is_remote=True):
        yield


def _flags_of(trace_id: int) -> trace.TraceFlags:
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        decided = provider.sampler.should_sample(context.Context(), trace_id, "execution")
        if decided.decision is not Decision.RECORD_AND_SAMPLE:
            return trace.TraceFlags(trace.TraceFlags.DEFAULT)
    return trace.TraceFlags(trace.TraceFlags.SAMPLED)


@contextmanager
def _inside(trace_id: int, flags: trace.TraceFlags, *, is_remote: bool) -> Iterator[None]:
    span = trace.SpanContext(trace_id, _ids.generate_span_id(), is_remote=is_remote, trace_flags=flags)
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
