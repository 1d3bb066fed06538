"""Sends the spans and metrics of a process while the process runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace

from pagantic_common.telemetry.collector import Signal, sends, transport
from pagantic_common.telemetry.metrics import set_up_metrics, shut_down_metrics
from pagantic_common.telemetry.tracing import shut_down_tracing


@contextmanager
def reporting(area: str, otlp_endpoint: str, *, host: str, port: int) -> Iterator[None]:
    """Report to a collector, to Prometheus on a port, or to neither, during the block. Then send the remaining data.

    Raises OSError if the port cannot be opened, and InvalidRequest for unsupported OpenTelemetry variables.
    """
    try:
        set_up_tracing(area, otlp_endpoint)
        set_up_metrics(area, otlp_endpoint, host=host, port=port)
        yield
    finally:
        shut_down_tracing()
        shut_down_metrics()


def set_up_tracing(area: str, otlp_endpoint: str) -> None:
    """Install the process's tracer provider, unless spans are not sent.

    Raises InvalidRequest for unsupported OpenTelemetry variables.
    """
    if not sends(Signal.TRACES, otlp_endpoint):
        return
    # Imported here, because the exporter takes a second to load and most installations have no collector.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from pagantic_common.telemetry.recording import WithoutErrorTexts, make_provider

    exporter = OTLPSpanExporter(**transport(otlp_endpoint))
    trace.set_tracer_provider(make_provider(area, BatchSpanProcessor(WithoutErrorTexts(exporter))))
