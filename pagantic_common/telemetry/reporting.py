"""Sends the spans and metrics of a process while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pagantic_common.telemetry.metrics import set_up_metrics, shut_down_metrics
from pagantic_common.telemetry.tracing import set_up_tracing, shut_down_tracing


@contextmanager
def reporting(area: str, otlp_endpoint: str, *, host: str, port: int) -> Iterator[None]:
    """Report to a collector, to Prometheus at a port, or to neither, within the block; then send what is left.

    Raises OSError when the port cannot be listened on, and InvalidRequest for variables of OpenTelemetry that cannot be
    followed.
    """
    try:
        set_up_tracing(area, otlp_endpoint)
        set_up_metrics(area, otlp_endpoint, host=host, port=port)
        yield
    finally:
        shut_down_tracing()
        shut_down_metrics()
