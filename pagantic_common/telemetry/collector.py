"""The connection to an OpenTelemetry collector, configured by pagantic's setting or OpenTelemetry's variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pagantic_common.domain.errors import ErrorCode, InvalidRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

DISABLED = "OTEL_SDK_DISABLED"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
OTLP, NONE, GRPC = "otlp", "none", "grpc"


class Exporter(Protocol):
    """Sends spans or metrics to a collector."""

    def shutdown(self) -> None:
        """End the call in progress and its retries, and stop sending."""


ExporterT = TypeVar("ExporterT", bound=Exporter)
_exporters: list[Exporter] = []


class Signal(Enum):
    """The signals that may be sent to a collector."""

    TRACES = "TRACES"
    METRICS = "METRICS"

    @property
    def exporter(self) -> str:
        """The variable that names the signal's exporter."""
        return f"OTEL_{self.value}_EXPORTER"

    @property
    def endpoint(self) -> str:
        """The variable that contains the signal's endpoint."""
        return f"OTEL_EXPORTER_OTLP_{self.value}_ENDPOINT"

    @property
    def protocol(self) -> str:
        """The variable that contains the signal's protocol."""
        return f"OTEL_EXPORTER_OTLP_{self.value}_PROTOCOL"


def sends(signal: Signal, endpoint: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a signal is sent. `endpoint` is pagantic's setting, and overrides OpenTelemetry's variables.

    Raises InvalidRequest (CONFIG_INVALID) if this program lacks the configured exporter or protocol.
    """
    if environment.get(DISABLED, "").lower() == "true":
        return False
    exporter = environment.get(signal.exporter) or OTLP
    if exporter == NONE:
        return False
    if not (endpoint or environment.get(signal.endpoint) or environment.get(ENDPOINT)):
        return False
    _check(signal.exporter, exporter, OTLP, f"{OTLP} or {NONE}")
    protocol = signal.protocol if environment.get(signal.protocol) else PROTOCOL
    _check(protocol, environment.get(protocol) or GRPC, GRPC, GRPC)
    return True


def _check(variable: str, value: str, wanted: str, known: str) -> None:
    if value != wanted:
        raise InvalidRequest(f"{variable} is {value!r}: it must be {known}", code=ErrorCode.CONFIG_INVALID)


def transport(endpoint: str) -> dict[str, Any]:
    """Return the connection options of an exporter. Without an endpoint, the exporter reads OpenTelemetry's variables.

    `host:port` uses plain text, and `https://host:port` uses TLS. The exporters read the TLS files from
    OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY.
    """
    if not endpoint:
        return {}
    return {"endpoint": endpoint, "insecure": not endpoint.startswith("https://")}


def connected(exporter_class: Callable[..., ExporterT], endpoint: str) -> ExporterT:
    """Return an exporter to a collector, until `disconnect`."""
    exporter = exporter_class(**transport(endpoint))
    _exporters.append(exporter)
    return exporter


def disconnect() -> None:
    """Shut down all exporters, so that threads do not wait for an unresponsive collector."""
    while _exporters:
        _exporters.pop().shutdown()


def resource_of(area: str) -> Resource:
    """Describe this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the default names."""
    # Imported here, because most processes have no collector and do not need the SDK.
    from importlib.metadata import version

    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    chosen = OTELResourceDetector().detect().attributes
    return Resource.create({"service.name": f"pagantic-{area}", "service.version": version("pagantic"), **chosen})
