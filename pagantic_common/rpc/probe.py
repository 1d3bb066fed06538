"""Queries the health of a server, from a program without asyncio."""

from __future__ import annotations

import os
from collections.abc import Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.telemetry.names import READINESS

PROBE_TIMEOUT_S = 1.0


def ask_health(address: str, name: str = READINESS, environment: Mapping[str, str] = os.environ) -> str:
    """Return the status of a name, such as SERVING or NOT_SERVING.

    Returns an empty string if there is no answer within a second. Raises InvalidRequest if a TLS file that the
    environment names cannot be read.
    """
    request = health_pb2.HealthCheckRequest(service=name)
    with find_target(address, environment).open_blocking() as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=PROBE_TIMEOUT_S)
        except grpc.RpcError:
            return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
