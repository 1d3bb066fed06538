"""Metrics of a process, read by Prometheus on a separate port, sent to a collector, or both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from pagantic_common.domain.addresses import bare_host
from pagantic_common.telemetry.collector import Signal, connected, resource_of, sends

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

Read = Callable[[], float]

# The buckets range from a cached answer to the longest execution.
DURATION_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def set_up_metrics(area: str, otlp_endpoint: str, *, host: str, port: int) -> None:
    """Install the process's meter provider if there is a collector or the port is not 0.

    Raises OSError if the port cannot be opened, and InvalidRequest for unsupported OpenTelemetry variables.
    """
    readers: list[MetricReader] = []
    # Imported here, because exporters are slow to load and most installations have no collector.
    if sends(Signal.METRICS, otlp_endpoint):
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        readers.append(PeriodicExportingMetricReader(connected(OTLPMetricExporter, otlp_endpoint)))
    if port:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import start_http_server

        readers.append(PrometheusMetricReader())
        start_http_server(port, addr=bare_host(host))
    if readers:
        install_metrics(area, readers)


def install_metrics(area: str, readers: Sequence[MetricReader]) -> None:
    """Pass the process's metrics to these readers from now on."""
    from opentelemetry.sdk.metrics import MeterProvider

    metrics.set_meter_provider(MeterProvider(readers, resource_of(area), shutdown_on_exit=False))


def add_gauge(name: str, description: str, read: Read) -> None:
    """Report the value of `read` whenever metrics are read."""
    metrics.get_meter("pagantic").create_observable_gauge(name, [_observed(read)], description=description)


def add_gauges(name: str, description: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
    """Report the values of `read`, one for each value of a label, whenever metrics are read."""
    metrics.get_meter("pagantic").create_observable_gauge(name, [_observed_by(label, read)], description=description)


def add_info(name: str, description: str, read: Callable[[], Mapping[str, str]]) -> None:
    """Report the value 1 with the labels that `read` returns, whenever metrics are read."""
    meter = metrics.get_meter("pagantic")
    meter.create_observable_gauge(name, [lambda _options: [Observation(1, read())]], description=description)


def add_counter(name: str, description: str, read: Read) -> None:
    """Report the value of `read`, which never decreases, whenever metrics are read."""
    metrics.get_meter("pagantic").create_observable_counter(name, [_observed(read)], description=description)


def add_counters(name: str, description: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
    """Report the values of `read`, one for each value of a label, whenever metrics are read.

    The values never decrease.
    """
    metrics.get_meter("pagantic").create_observable_counter(name, [_observed_by(label, read)], description=description)


def make_counter(name: str, description: str) -> metrics.Counter:
    """Make a counter, which starts counting once metrics are set up."""
    return metrics.get_meter("pagantic").create_counter(name, description=description)


def make_balance(name: str, description: str) -> metrics.UpDownCounter:
    """Make a counter that may also decrease. It starts counting once metrics are set up."""
    return metrics.get_meter("pagantic").create_up_down_counter(name, description=description)


def make_histogram(name: str, description: str, *, unit: str, bounds: Sequence[float]) -> metrics.Histogram:
    """Make a histogram with these bucket bounds. It starts counting once metrics are set up."""
    meter = metrics.get_meter("pagantic")
    return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)


def shut_down_metrics() -> None:
    """Send the remaining metrics, and shut down the meter provider."""
    provider = metrics.get_meter_provider()
    sdk_class = getattr(sys.modules.get("opentelemetry.sdk.metrics"), "MeterProvider", None)
    if sdk_class is not None and isinstance(provider, sdk_class):
        cast("MeterProvider", provider).shutdown()


def _observed(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(read())]


def _observed_by(
    label: str, read: Callable[[], Mapping[str, float]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(value, {label: of}) for of, value in read().items()]
