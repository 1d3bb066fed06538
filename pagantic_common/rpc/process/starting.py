"""A service that waits for its requirements. It reports that it is not serving yet, and can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from pagantic_common.domain.errors import ErrorCode, Unavailable
from pagantic_common.rpc.health import NOT_SERVING, SERVING, Health
from pagantic_common.rpc.process.admin import start_admin_server
from pagantic_common.rpc.process.listening import add_port
from pagantic_common.rpc.process.server import credentials_of
from pagantic_common.rpc.status import DETAILS_KEY, details_of, status_message
from pagantic_common.settings import ServiceSettings
from pagantic_common.telemetry.names import LIVENESS, READINESS

RETRY_AFTER_S = 2.0

stopping: ContextVar[asyncio.Event | None] = ContextVar("stopping", default=None)


class StoppedAtStart(Exception):
    """The process received a stop signal before it had started."""


class WaitedTooLong(Unavailable):
    """A requirement for starting the service did not become available in the permitted time."""


async def pause(seconds: float) -> None:
    """Sleep while the service starts. Raises StoppedAtStart after a stop signal."""
    stop = stopping.get()
    if stop is None:
        await asyncio.sleep(seconds)
        return
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
    raise StoppedAtStart


@asynccontextmanager
async def not_serving_yet(settings: ServiceSettings, names: Sequence[str], reason: str) -> AsyncIterator[None]:
    """Listen on the service's ports during the block, before the service can serve.

    `liveness` is SERVING, the other names are NOT_SERVING, and calls fail with UNAVAILABLE. Raises CannotListen,
    and InvalidRequest if the certificates are unusable.
    """
    health = Health()
    for name in ("", READINESS, *names):
        health.set(name, NOT_SERVING)
    health.set(LIVENESS, SERVING)
    server = grpc.aio.server(handlers=[_Refusing(reason)], options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    add_port(server, settings.host, settings.port, "PORT", credentials_of(settings))
    await server.start()
    admin = None
    try:
        admin = await start_admin_server(settings, health)
        yield
    finally:
        if admin is not None:
            await admin.stop(grace=0)
        await server.stop(grace=0)


class _Refusing(grpc.GenericRpcHandler):
    def __init__(self, reason: str) -> None:
        self._error = Unavailable(
            f"the service is starting: {reason}",
            code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
            retry_after_s=RETRY_AFTER_S,
        )

    def service(self, _details: grpc.HandlerCallDetails) -> Any:
        """Return a handler that refuses a call of any method."""
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        error = self._error
        await context.abort(grpc.StatusCode.UNAVAILABLE, status_message(error), ((DETAILS_KEY, details_of(error)),))
