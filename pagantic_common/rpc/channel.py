"""One way to open a channel to another service."""

from __future__ import annotations

import json
from typing import Any

import grpc
from opentelemetry.instrumentation.grpc import aio_client_interceptors

# Health checking works only under round_robin, which is also what spreads calls over the pods of a headless Service.
_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}})


def channel_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    """Return the options that every channel has; reconnects are quick, so that a service that comes back is used."""
    return [
        ("grpc.service_config", _SERVICE_CONFIG),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    ]


def open_channel(address: str, *, max_message_bytes: int) -> grpc.aio.Channel:
    """Open a traced, plaintext channel that connects on first use."""
    return grpc.aio.insecure_channel(
        address, options=channel_options(max_message_bytes), interceptors=list(aio_client_interceptors())
    )
