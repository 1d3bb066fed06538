"""Runs a service's server: health, limits, tracing, a graceful drain on SIGTERM, an exit when a service is broken.

`liveness` reports that this process works, whatever it depends on; so do the empty name and each service's name.
`readiness` reports that the service can answer a request now.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TextIO, TypeVar

import grpc
from grpc_health.v1 import health_pb2_grpc
from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

from pagantic_common.domain.calls.limits import CallLimits
from pagantic_common.domain.defaults import PRIVATE_UMASK
from pagantic_common.domain.errors import PaganticError
from pagantic_common.rpc.access.registration import Registration, gate_of
from pagantic_common.rpc.access.tls.certificates import read_certificates, server_credentials
from pagantic_common.rpc.admin import PortInUse, listen, start_admin_server
from pagantic_common.rpc.health import SERVING, Health
from pagantic_common.rpc.reflection import add_reflection
from pagantic_common.rpc.server_call import CallInterceptor
from pagantic_common.settings import EXIT_CONFIG, ServiceSettings, load_settings
from pagantic_common.telemetry.logging import get_logger, set_up_logging
from pagantic_common.telemetry.metrics import add_gauge, set_up_metrics, shut_down_metrics
from pagantic_common.telemetry.names import LIVENESS, RPC_MAX_CALLS, RPC_RUNNING_CALLS
from pagantic_common.telemetry.tracing import is_recording, set_up_tracing, shut_down_tracing

HEALTH_SERVICE = "grpc.health.v1.Health"
DRAIN_RESERVE_S = 1.0
READINESS_INTERVAL_S = 0.25
EXIT_START_FAILED = 69  # EX_UNAVAILABLE of sysexits.h
EXIT_BROKEN = 70  # EX_SOFTWARE: a supervisor starts the process again
BROKEN_DRAIN_S = 2.0

_CONNECTION_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Callers ping a silent call each minute; by default gRPC treats that as an attack after four pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # The calls of a caller that vanished end after these times.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # Callers resolve names again when a connection ends, so that new replicas get calls. Running calls are not cut:
    # an execution may last for days.
    ("grpc.max_connection_age_ms", 120_000),
)

log = get_logger(__name__)


OpenApp = Callable[[], AbstractAsyncContextManager[Sequence[Registration]]]


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class Program(Generic[SettingsT]):
    """A service as a program: its area, its settings, and the function that opens its app."""

    area: str
    settings: type[SettingsT]
    open_app: Callable[[SettingsT], AbstractAsyncContextManager[Sequence[Registration]]]

    def run(self) -> None:
        """Run the service with the settings of the environment, until SIGTERM or SIGINT."""
        settings = load_settings(self.settings)
        run_service(self.area, settings, partial(self.open_app, settings))


class StartFailed(Exception):
    """One of several services of a process cannot start."""

    def __init__(self, area: str, error: PaganticError) -> None:
        super().__init__(str(error))
        self.area = area
        self.error = error


async def start_server(
    settings: ServiceSettings, registrations: Sequence[Registration]
) -> tuple[grpc.aio.Server, Health, int]:
    """Start a server with health, limits and interceptors; returns it, its health and its port.

    Raises PortInUse, and InvalidRequest for certificates that cannot be used.
    """
    limits = CallLimits(settings.max_concurrent_rpcs, settings.max_calls_per_host, settings.max_concurrent_bytes)
    interceptors: list[grpc.aio.ServerInterceptor] = [CallInterceptor(limits, gate_of(registrations))]
    if is_recording():
        interceptors.insert(0, aio_server_interceptor(filter_=filters.negate(filters.health_check())))
    add_gauge(RPC_RUNNING_CALLS, "calls that run", lambda: limits.running)
    add_gauge(RPC_MAX_CALLS, "most calls that may run", lambda: settings.max_concurrent_rpcs)
    server = grpc.aio.server(
        interceptors=interceptors,
        options=[
            *_CONNECTION_OPTIONS,
            ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
            ("grpc.max_receive_message_length", settings.max_received_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
        ],
    )
    health = Health()
    names = [registration.service_name for registration in registrations]
    for registration in registrations:
        registration.add_to(server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if settings.serves_reflection:
        add_reflection(server, [*names, HEALTH_SERVICE])
    port = listen(server, f"{settings.host}:{settings.port}", "PORT", _credentials_of(settings))
    for name in ("", LIVENESS, *names):
        health.set(name, SERVING)
    health.set_ready(is_ready=all(registration.why_not_ready is None for registration in registrations))
    await server.start()
    return server, health, port


def _credentials_of(settings: ServiceSettings) -> grpc.ServerCredentials | None:
    """Return what the port shows its callers; None for plain text."""
    certificates = read_certificates(settings, settings.caller_ca_file)
    if certificates is None:
        return None
    return server_credentials(certificates, requires_certificate=settings.requires_certificate)


async def _watch_readiness(registrations: Sequence[Registration], health: Health) -> None:
    """Set the readiness from the services' checks, again and again; without checks it stays as it is."""
    checks = [service.why_not_ready for service in registrations if service.why_not_ready is not None]
    last_reason: str | None = None
    while True:
        reason = "; ".join(filter(None, [await _reason_of(check) for check in checks]))
        if checks and reason != last_reason:
            last_reason = reason
            _report_readiness(reason, health)
        await asyncio.sleep(READINESS_INTERVAL_S)


def _report_readiness(reason: str, health: Health) -> None:
    health.set_ready(is_ready=not reason)
    if reason:
        log.info("waiting", reason=reason)
    else:
        log.info("ready")


async def _reason_of(check: Callable[[], Awaitable[str]]) -> str:
    try:
        return await check()
    except Exception as error:  # noqa: BLE001 - any failure means that the service is not ready
        return f"the readiness check failed: {error!r}"


async def _serve(area: str, settings: ServiceSettings, open_app: OpenApp, on_listening: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_app() as registrations:
        server, health, port = await start_server(settings, registrations)
        try:
            admin = await start_admin_server(settings, health)
        except PortInUse:
            await server.stop(grace=0)
            raise
        _tune_gc()
        log.info("listening", address=f"{settings.host}:{port}")
        on_listening()
        if reason := await _wait_for_end(stop, registrations, health):
            await _give_up(area, reason, server, health)
        log.info("draining", drain_s=settings.drain_s)
        for service in registrations:
            if service.begin_drain is not None:
                service.begin_drain()
        health.stop()
        if settings.drain_s <= DRAIN_RESERVE_S:  # later the server would cut the connections before the answers
            await _drain(registrations)
        stopping = asyncio.create_task(server.stop(grace=settings.drain_s))
        _, still_running = await asyncio.wait([stopping], timeout=max(0.0, settings.drain_s - DRAIN_RESERVE_S))
        if still_running:
            await _drain(registrations)
        await stopping
        if admin is not None:
            await admin.stop(grace=0)
    log.info("stopped", area=area)


async def _wait_for_end(stop: asyncio.Event, registrations: Sequence[Registration], health: Health) -> str:
    """Wait for the signal to stop, and return ""; or for a broken service, and return the reason."""
    stopping = asyncio.create_task(stop.wait())
    readiness = asyncio.create_task(_watch_readiness(registrations, health))
    waits = [service.wait_until_broken for service in registrations if service.wait_until_broken is not None]
    watching = [asyncio.ensure_future(wait()) for wait in waits]
    ending: list[asyncio.Future[Any]] = [stopping, *watching]
    try:
        await asyncio.wait([*ending, readiness], return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return ""
        ended = next(task for task in (*watching, readiness) if task.done())
        if error := ended.exception():
            return f"watching it failed: {error!r}"
        return str(ended.result())
    finally:
        for task in (*ending, readiness):
            task.cancel()


async def _give_up(area: str, reason: str, server: grpc.aio.Server, health: Health) -> NoReturn:
    """End the process of a broken service; its supervisor starts another.

    The process exits without Python's own shutdown, which would wait for a thread that hangs.
    """
    log.critical("broken: the process ends", area=area, reason=reason, exit_status=EXIT_BROKEN)
    health.stop()
    with suppress(Exception):
        async with asyncio.timeout(2 * BROKEN_DRAIN_S):
            await server.stop(grace=BROKEN_DRAIN_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_BROKEN)


async def _drain(registrations: Sequence[Registration]) -> None:
    drains = (service.drain() for service in registrations if service.drain is not None)
    for outcome in await asyncio.gather(*drains, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("a service could not end what it runs", exc_info=outcome)


def _tune_gc() -> None:
    """Collect reference cycles less often: calls make few, and the default takes a quarter of the time."""
    gc.freeze()  # loaded modules stay
    gc.set_threshold(20_000, 20, 20)


def run_service(
    area: str,
    settings: ServiceSettings,
    open_app: OpenApp,
    *,
    on_listening: Callable[[], None] = lambda: None,
    log_to: TextIO | None = None,
) -> None:
    """Run a service until SIGTERM or SIGINT. If it cannot start, print the reason on stderr and exit with an error.

    The app is opened before the port, so that a service that listens can answer. The service's files are its user's
    alone.
    """
    os.umask(PRIVATE_UMASK)
    set_up_logging(area, level=settings.log_level, log_format=settings.log_format, stream=log_to)
    set_up_tracing(area, settings.otlp_endpoint)
    try:
        _set_up_metrics(area, settings)
        asyncio.run(_serve(area, settings, open_app, on_listening))
    except PaganticError as error:
        _exit_for(area, error)
    except StartFailed as failed:
        _exit_for(failed.area, failed.error)
    except PortInUse as error:
        hint = f"set PAGANTIC_{area.upper()}_{error.setting}, or stop the process that listens there"
        print(f"the {area} service cannot start: {error}; {hint}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_START_FAILED)
    finally:
        shut_down_tracing()
        shut_down_metrics()


def _exit_for(area: str, error: PaganticError) -> NoReturn:
    reason = str(error)
    if error.code is not None:
        reason = f"{error.code.value}: {error}"
    print(f"the {area} service cannot start: {reason}", file=sys.stderr)  # noqa: T201
    sys.exit(EXIT_CONFIG)


def _set_up_metrics(area: str, settings: ServiceSettings) -> None:
    try:
        set_up_metrics(area, settings.otlp_endpoint, host=settings.host, port=settings.metrics_port)
    except OSError:
        address = f"{settings.host}:{settings.metrics_port}"
        raise PortInUse(f"cannot listen on {address} for metrics", "METRICS_PORT") from None
