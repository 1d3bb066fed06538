"""Answers probes on a port of their own, so that no caller can keep them from their answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2_grpc

from gateway.mcp.settings import McpSettings
from pagantic_common.rpc.health import SERVING, Health
from pagantic_common.telemetry.names import LIVENESS, READINESS

MAX_RPCS = 64
MAX_MESSAGE_BYTES = 64 * 1024


@asynccontextmanager
async def answering_probes(settings: McpSettings) -> AsyncIterator[None]:
    """Serve gRPC's health service on the admin port within the block; raises OSError for a port that is taken.

    A server without its orchestrator is ready: it tells each caller why a call fails. A refused connection would not.
    """
    if not settings.admin_port:
        yield
        return
    health = Health()
    for name in (LIVENESS, READINESS):
        health.set(name, SERVING)
    server = grpc.aio.server(
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)],
        maximum_concurrent_rpcs=MAX_RPCS,
    )
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    try:
        server.add_insecure_port(f"{settings.host}:{settings.admin_port}")
    except RuntimeError:
        raise OSError(f"port {settings.admin_port} of PAGANTIC_MCP_ADMIN_PORT is in use") from None
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=0)
