"""gRPC's health service, for a server with slow, hostile or vanished watchers.

The service of grpcio-health-checking writes to each watcher while it holds the lock that every change needs. A single
watcher that does not read would block every change, and keep the server from stopping.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagantic_common.telemetry.names import READINESS

SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
MAX_NAME_CHARS = 200

Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Serves the health status of each name."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._changed = asyncio.Event()  # Replaced at each change.
        self._is_stopping = False

    def status_of(self, name: str) -> int | None:
        """Return the status of a name, or None if the name is unknown."""
        return self._statuses.get(name)

    def set(self, name: str, status: int) -> None:
        """Set the status of a name. After `stop`, this has no effect."""
        if not self._is_stopping:
            self._set(name, status)

    def set_ready(self, *, is_ready: bool) -> None:
        """Set the status of `readiness`."""
        status = NOT_SERVING
        if is_ready:
            status = SERVING
        self.set(READINESS, status)

    def stop(self) -> None:
        """Set every name to NOT_SERVING permanently."""
        self._is_stopping = True
        for name in self._statuses:
            self._set(name, NOT_SERVING)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Any:  # noqa: N802 - gRPC's name
        """Return the status of a name. The call fails with NOT_FOUND if the name is unknown."""
        status = self._statuses.get(request.service)
        if status is None:
            await _refuse(request, context)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """Send the status of a name now and at each change.

        The call fails with NOT_FOUND if the name is long, because the name would occupy memory.
        """
        if len(request.service) > MAX_NAME_CHARS:
            await _refuse(request, context)
        sent: int | None = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status == sent:
                await changed.wait()
                continue
            sent = status
            yield health_pb2.HealthCheckResponse(status=status)

    def _set(self, name: str, status: int) -> None:
        if self._statuses.get(name) == status:
            return
        self._statuses[name] = status
        self._changed.set()
        self._changed = asyncio.Event()


async def _refuse(request: health_pb2.HealthCheckRequest, context: Context) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, f"no service is named {request.service[:MAX_NAME_CHARS]!r}")
