"""The connection to an OpenTelemetry collector."""

from __future__ import annotations


def is_plain(endpoint: str) -> bool:
    """Tell whether a collector is reached without TLS; `https://host:port` is reached with it.

    The exporters read its files from OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY.
    """
    return not endpoint.startswith("https://")
