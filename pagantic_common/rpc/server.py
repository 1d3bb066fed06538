"""One way to start a server: health, reflection, channelz, tracing, and a graceful drain on SIGTERM.

Health has two names besides those of the services: `liveness` says that this process works, whatever it depends on, and
so do the empty name and each service's; `readiness` says that a request that comes now would be answered.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NoReturn, TextIO

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry.instrumentation.grpc import aio_server_interceptor, filters

from pagantic_common.domain.errors import PaganticError
from pagantic_common.rpc.reflection import add_reflection
from pagantic_common.rpc.server_call import CallInterceptor
from pagantic_common.settings import EXIT_CONFIG, ServiceSettings
from pagantic_common.telemetry.logging import get_logger, set_up_logging
from pagantic_common.telemetry.metrics import set_up_metrics, shut_down_metrics
from pagantic_common.telemetry.names import LIVENESS, READINESS
from pagantic_common.telemetry.tracing import is_recording, set_up_tracing, shut_down_tracing

LAST_WORDS_S = 1.0
MAX_CONNECTION_AGE_MS = 120_000
READINESS_INTERVAL_S = 0.25
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
EXIT_START_FAILED = 69  # EX_UNAVAILABLE of sysexits.h

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """A servicer to add: its full service name and what adds it to a server.

    `begin_drain` is told that no new call comes. `drain` ends what still runs shortly before the drain's time is up, so
    that callers get an answer, not a cut line.
    `wait_until_broken` returns the reason when the service can serve no more; its health says so from then on.
    `why_not_ready` returns what the service still waits for, empty when it is ready; without it a service that listens
    is ready.
    """

    service_name: str
    add_to: Callable[[grpc.aio.Server], None]
    begin_drain: Callable[[], None] | None = None
    drain: Callable[[], Awaitable[None]] | None = None
    wait_until_broken: Callable[[], Awaitable[str]] | None = None
    why_not_ready: Callable[[], Awaitable[str]] | None = None


OpenApp = Callable[[], AbstractAsyncContextManager[Sequence[Registration]]]


class PortInUse(Exception):
    """The address cannot be listened on."""


class StartFailed(Exception):
    """A service of a process that has several cannot start."""

    def __init__(self, area: str, error: PaganticError) -> None:
        super().__init__(str(error))
        self.area = area
        self.error = error


async def start_server(
    settings: ServiceSettings, registrations: Sequence[Registration]
) -> tuple[grpc.aio.Server, health.aio.HealthServicer, int]:
    """Start a server with everything that each has; returns it, its health and its port. Raises PortInUse."""
    tracing = [aio_server_interceptor(filter_=filters.negate(filters.health_check()))] if is_recording() else []
    server = grpc.aio.server(
        interceptors=[*tracing, CallInterceptor()],
        options=[
            ("grpc.so_reuseport", 0),
            # Callers ping a silent call each minute; the default would take that for an attack after four.
            ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # Callers look up their peers again when a connection ends: so replicas that were added get calls.
            ("grpc.max_connection_age_ms", MAX_CONNECTION_AGE_MS),
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
        ],
        maximum_concurrent_rpcs=settings.max_concurrent_rpcs,
    )
    health_servicer = health.aio.HealthServicer()
    names = [registration.service_name for registration in registrations]
    for registration in registrations:
        registration.add_to(server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    channelz.add_channelz_servicer(server)
    add_reflection(server, [*names, health.SERVICE_NAME, "grpc.channelz.v1.Channelz"])
    address = f"{settings.host}:{settings.port}"
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        raise PortInUse(
            f"cannot listen on {address}: the port is in use or the address is not this machine's"
        ) from None
    for name in ("", LIVENESS, *names):
        await health_servicer.set(name, SERVING)
    is_ready = all(registration.why_not_ready is None for registration in registrations)
    await health_servicer.set(READINESS, SERVING if is_ready else NOT_SERVING)
    await server.start()
    return server, health_servicer, port


async def _watch(registration: Registration, health_servicer: health.aio.HealthServicer) -> None:
    if registration.wait_until_broken is None:
        return
    reason = await registration.wait_until_broken()
    log.error("not serving", reason=reason)
    for name in ("", LIVENESS, READINESS, registration.service_name):
        await health_servicer.set(name, NOT_SERVING)


async def _watch_readiness(registrations: Sequence[Registration], health_servicer: health.aio.HealthServicer) -> None:
    """Keep the readiness what the services say; once the process is broken it stays so."""
    checks = [one.why_not_ready for one in registrations if one.why_not_ready is not None]
    told: str | None = None
    while checks:
        reason = "; ".join(filter(None, [await check() for check in checks]))
        if reason != told:
            told = reason
            log.info("waiting" if reason else "ready", **({"reason": reason} if reason else {}))
            live = await health_servicer.Check(health_pb2.HealthCheckRequest(service=LIVENESS), None)
            is_ready = not reason and live.status == SERVING
            await health_servicer.set(READINESS, SERVING if is_ready else NOT_SERVING)
        await asyncio.sleep(READINESS_INTERVAL_S)


async def _serve(area: str, settings: ServiceSettings, open_app: OpenApp, on_listening: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_app() as registrations:
        server, health_servicer, port = await start_server(settings, registrations)
        _spare_the_collector()
        log.info("listening", address=f"{settings.host}:{port}")
        on_listening()
        watching = [asyncio.create_task(_watch(one, health_servicer)) for one in registrations]
        watching.append(asyncio.create_task(_watch_readiness(registrations, health_servicer)))
        await stop.wait()
        for watch in watching:
            watch.cancel()
        log.info("draining", drain_s=settings.drain_s)
        for one in registrations:
            if one.begin_drain is not None:
                one.begin_drain()
        await health_servicer.enter_graceful_shutdown()
        if settings.drain_s <= LAST_WORDS_S:  # the server would cut the lines before the last words
            await _drain(registrations)
        stopping = asyncio.create_task(server.stop(grace=settings.drain_s))
        _, still_running = await asyncio.wait([stopping], timeout=max(0.0, settings.drain_s - LAST_WORDS_S))
        if still_running:
            await _drain(registrations)
        await stopping
    log.info("stopped", area=area)


async def _drain(registrations: Sequence[Registration]) -> None:
    await asyncio.gather(*(one.drain() for one in registrations if one.drain is not None))


def _spare_the_collector() -> None:
    """Look for reference cycles more rarely: calls make few, and by default a quarter of the time goes to looking."""
    gc.freeze()  # what was loaded stays
    gc.set_threshold(20_000, 20, 20)


def run_service(
    area: str,
    settings: ServiceSettings,
    open_app: OpenApp,
    *,
    on_listening: Callable[[], None] = lambda: None,
    log_to: TextIO | None = None,
) -> None:
    """Run a service until SIGTERM or SIGINT. What keeps it from starting is told on stderr, with a non-zero exit.

    The app is opened before the port: a service that listens can answer.
    """
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
        hint = f"set PAGANTIC_{area.upper()}_PORT, or stop what listens there"
        print(f"the {area} service cannot start: {error}; {hint}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_START_FAILED)
    finally:
        shut_down_tracing()
        shut_down_metrics()


def _exit_for(area: str, error: PaganticError) -> NoReturn:
    code = error.code.value + ": " if error.code else ""
    print(f"the {area} service cannot start: {code}{error}", file=sys.stderr)  # noqa: T201
    sys.exit(EXIT_CONFIG)


def _set_up_metrics(area: str, settings: ServiceSettings) -> None:
    try:
        set_up_metrics(area, settings.otlp_endpoint, host=settings.host, port=settings.metrics_port)
    except OSError:
        raise PortInUse(f"cannot listen on {settings.host}:{settings.metrics_port} for metrics") from None
