"""Answers probes on a separate port, so that callers cannot delay the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.web.settings import DoorSettings
from pagantic_common.rpc.health import SERVING, Context, Health
from pagantic_common.rpc.process.listening import CannotListen, add_port
from pagantic_common.telemetry.names import LIVENESS, READINESS

MAX_RPCS = 64
MAX_MESSAGE_BYTES = 64 * 1024


class _CheckedHealth(Health):
    """A health service that rejects watches, which would occupy the slots for checks. A kubelet sends only checks."""

    async def Watch(self, _: health_pb2.HealthCheckRequest, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """Reject a watch."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this port answers checks only: call Check")
        yield  # The yield makes this method a generator, which gRPC expects for a stream.


@asynccontextmanager
async def answering_probes(settings: DoorSettings) -> AsyncIterator[None]:
    """Answer gRPC health checks on the admin port while the block runs. Raises OSError if the port cannot be used.

    A server without its orchestrator is ready, because it can report to each caller the reason for a failed call. A
    refused connection would not report a reason.
    """
    if not settings.admin_port:
        yield
        return
    health = _CheckedHealth()
    for name in (LIVENESS, READINESS):
        health.set(name, SERVING)
    server = grpc.aio.server(
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)],
        maximum_concurrent_rpcs=MAX_RPCS,
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    try:
        add_port(server, settings.host, settings.admin_port, "ADMIN_PORT")
    except CannotListen as error:
        raise OSError(f"{error}: change {settings.variable(error.setting.lower())}") from None
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=0)
