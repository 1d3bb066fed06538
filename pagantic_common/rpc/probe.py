"""Asks a server for its health, from a program without asyncio."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagantic_common.telemetry.names import READINESS

PROBE_TIMEOUT_S = 1.0


def ask_health(address: str, name: str = READINESS) -> str:
    """Return SERVING, NOT_SERVING or another status of a name; empty when nothing answers within a second."""
    request = health_pb2.HealthCheckRequest(service=name)
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
