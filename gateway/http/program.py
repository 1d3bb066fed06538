"""Runs the HTTP gateway as a program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.http.app import HttpApp
from gateway.http.measuring import report_load
from gateway.http.serving import served_operations
from gateway.http.settings import HttpSettings
from gateway.web.callers import Callers
from gateway.web.serving import log_to_stderr, serve_app
from pagantic_common.client import AsyncClient
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.process.listening import CannotListen
from pagantic_common.rpc.process.protection import protect_memory
from pagantic_common.settings import load_settings
from pagantic_common.telemetry.names import READINESS
from pagantic_common.telemetry.reporting import reporting

PATH = "/v1"
CONSOLE_PATH = "/"
PROBE_S = 2.0


def run(address: str, port: int | None, announce: Callable[[str, str], None]) -> None:
    """Serve clients until SIGINT or SIGTERM. Raises OSError if the port cannot be used.

    `announce` receives the URL of the APIs, and the URL of the console or an empty string if the console is off.
    """
    protect_memory()
    log_to_stderr()
    settings = load_settings(HttpSettings)
    if port is not None:
        settings = settings.model_copy(update={"port": port})
    with _reporting(settings):
        asyncio.run(_serve(settings, address, announce))


@contextmanager
def _reporting(settings: HttpSettings) -> Iterator[None]:
    """Report spans and metrics while the block runs."""
    with ExitStack() as stack:
        try:
            port = settings.metrics_port
            stack.enter_context(reporting("http", settings.otlp_endpoint, host=settings.host, port=port))
        except OSError as error:
            refused = CannotListen.because_of(error, settings.host, settings.metrics_port, "METRICS_PORT")
            raise OSError(f"{refused}: change {settings.variable(refused.setting.lower())}") from None
        yield


async def _serve(settings: HttpSettings, address: str, announce: Callable[[str, str], None]) -> None:
    def announce_both(url: str) -> None:
        console = url.removesuffix(PATH) + CONSOLE_PATH if settings.console else ""
        announce(url, console)

    async with open_app(settings, address) as app:
        await serve_app(app, settings, PATH, announce_both)


@asynccontextmanager
async def open_app(settings: HttpSettings, address: str) -> AsyncIterator[HttpApp]:
    """Yield the application for the deployment whose orchestrator is at this address."""
    async with (
        AsyncClient(address, timeout_s=settings.call_s) as client,
        find_target(client.address, os.environ).open(MAX_MESSAGE_BYTES) as channel,
    ):
        health: health_pb2_grpc.HealthAsyncStub = health_pb2_grpc.HealthStub(channel)

        async def is_ready() -> bool:
            try:
                reply = await health.Check(health_pb2.HealthCheckRequest(service=READINESS), timeout=PROBE_S)
            except grpc.aio.AioRpcError:
                return False
            return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

        app = HttpApp(Callers(client), settings, is_ready, served_operations(settings))
        report_load(lambda: app.entry.request_count, settings.max_streams, app.streams)
        yield app
