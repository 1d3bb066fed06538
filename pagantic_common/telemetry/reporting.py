"""Sends the spans and metrics of a process while the process runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry import trace

from pagantic_common.telemetry.collector import Signal, connected, disconnect, sends
from pagantic_common.telemetry.metrics import set_up_metrics, shut_down_metrics
from pagantic_common.telemetry.tracing import shut_down_tracing

# A collector accepts the last data in far less time, and a process must end within two seconds of its last call.
FLUSH_S = 1.0
DISCONNECT_S = 0.5

# The HTTP gateway also uses this module, and is installed without structlog.
log = logging.getLogger(__name__)


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
        end_reporting()


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

    exporter = connected(OTLPSpanExporter, otlp_endpoint)
    trace.set_tracer_provider(make_provider(area, BatchSpanProcessor(WithoutErrorTexts(exporter))))


def end_reporting() -> None:
    """Send the remaining spans and metrics, for a limited time if the collector does not answer."""
    if _ended(FLUSH_S, shut_down_tracing, shut_down_metrics):
        return
    log.warning("the collector did not take the last spans and metrics within %g s", FLUSH_S)
    _ended(DISCONNECT_S, disconnect)


def _ended(limit_s: float, *works: Callable[[], None]) -> bool:
    """Run work of the SDK, each in a thread, and return whether it ended in time. A late thread is left running."""
    until_s = time.monotonic() + limit_s
    # Daemon threads do not keep the process from exiting. The SDK may wait half a minute for a collector.
    threads = [threading.Thread(target=_run_quietly, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _run_quietly(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - a process ends normally whatever its collector does
        log.warning("reporting ended with an error: %s", error)
