"""Distributed traces: every service has spans; they are exported when a collector is configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator


def set_up_tracing(area: str, otlp_endpoint: str) -> None:
    """Install the process's tracer provider; with an empty endpoint spans carry ids but go nowhere."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"pagantic-{area}"}), shutdown_on_exit=False)
    if otlp_endpoint:
        # Imported here: the exporter takes a second to load and most installations have no collector.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=otlp_endpoint, insecure=True)))
    trace.set_tracer_provider(provider)


@contextmanager
def trace_scope(trace_id: str) -> Iterator[None]:
    """Make the work inside part of the trace of this id (32 hex digits); an empty one changes nothing."""
    if not trace_id:
        yield
        return
    parent = trace.SpanContext(
        trace_id=int(trace_id, 16),
        span_id=RandomIdGenerator().generate_span_id(),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(parent)))
    try:
        yield
    finally:
        context.detach(token)


def shut_down_tracing() -> None:
    """Send what has not been sent yet."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()
