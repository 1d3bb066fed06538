"""Runs a service as a program, with settings, logging, tracing and metrics. Errors at the start go to stderr.

Serves the app until its end, and then drains it. `liveness`, the empty name and each service's name report that this
process works, regardless of its dependencies. `readiness` reports that the service can answer a request now.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TextIO, TypeVar

import grpc

from pagantic_common.domain.addresses import address_of
from pagantic_common.domain.defaults import PRIVATE_UMASK
from pagantic_common.domain.errors import PaganticError
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.health import Health
from pagantic_common.rpc.process.admin import start_admin_server
from pagantic_common.rpc.process.listening import CannotListen
from pagantic_common.rpc.process.protection import protect_memory
from pagantic_common.rpc.process.server import start_server
from pagantic_common.rpc.process.starting import StoppedAtStart, WaitedTooLong, stopping
from pagantic_common.settings import EXIT_CONFIG, ServiceSettings, load_settings
from pagantic_common.telemetry.logging import get_logger, set_up_logging
from pagantic_common.telemetry.reporting import reporting

RETURN_INTERVAL_S = 30.0
DRAIN_RESERVE_S = 1.0
READINESS_INTERVAL_S = 0.25
EXIT_BROKEN = 70  # EX_SOFTWARE: a supervisor restarts the process.
BROKEN_DRAIN_S = 2.0

log = get_logger(__name__)

OpenApp = Callable[[], AbstractAsyncContextManager[Sequence[Registration]]]
EXIT_START_FAILED = 69  # EX_UNAVAILABLE of sysexits.h

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class Program(Generic[SettingsT]):
    """A service as a program: its area, its settings, and the function that opens its app."""

    area: str
    settings: type[SettingsT]
    open_app: Callable[[SettingsT], AbstractAsyncContextManager[Sequence[Registration]]]

    def run(self) -> None:
        """Run the service, with settings from the environment, until SIGTERM or SIGINT."""
        settings = load_settings(self.settings)
        run_service(self.area, settings, partial(self.open_app, settings))


class StartFailed(Exception):
    """A service in a process with several services cannot start."""

    def __init__(self, area: str, error: PaganticError) -> None:
        super().__init__(str(error))
        self.area = area
        self.error = error


def run_service(
    area: str,
    settings: ServiceSettings,
    open_app: OpenApp,
    *,
    on_listening: Callable[[], None] = lambda: None,
    log_to: TextIO | None = None,
) -> None:
    """Run a service until SIGTERM or SIGINT. If it cannot start, print the reason to stderr and exit with an error.

    The app is opened before the port, so that a listening service can answer. Only the service's user can access its
    files, and other processes cannot access its memory.
    """
    protect_memory()
    os.umask(PRIVATE_UMASK)
    set_up_logging(area, level=settings.log_level, log_format=settings.log_format, stream=log_to)
    try:
        with _reporting(area, settings):
            asyncio.run(serve(area, settings, open_app, on_listening))
    except PaganticError as error:
        _exit_for(area, error)
    except StartFailed as failed:
        _exit_for(failed.area, failed.error)
    except CannotListen as error:
        hint = f"set PAGANTIC_{area.upper()}_{error.setting}, or stop the process that listens there"
        if error.setting == "HOST":
            hint = f"set PAGANTIC_{area.upper()}_HOST or PAGANTIC_HOST to an address of this machine"
        print(f"the {area} service cannot start: {error}; {hint}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_START_FAILED)


def _exit_for(area: str, error: PaganticError) -> NoReturn:
    reason = str(error)
    if error.code is not None:
        reason = f"{error.code.value}: {error}"
    print(f"the {area} service cannot start: {reason}", file=sys.stderr)  # noqa: T201
    if isinstance(error, WaitedTooLong):
        sys.exit(EXIT_START_FAILED)
    sys.exit(EXIT_CONFIG)


@contextmanager
def _reporting(area: str, settings: ServiceSettings) -> Iterator[None]:
    """Report spans and metrics within the block."""
    host, port = settings.host, settings.metrics_port
    with ExitStack() as stack:
        try:
            stack.enter_context(reporting(area, settings.otlp_endpoint, host=host, port=port))
        except OSError as error:
            raise CannotListen.because_of(error, host, port, "METRICS_PORT") from None
        yield


async def serve(area: str, settings: ServiceSettings, open_app: OpenApp, on_listening: Callable[[], None]) -> None:
    """Serve the app until SIGTERM or SIGINT, then drain it. The process exits if any of its services is broken.

    Raises CannotListen, and the errors of opening the app.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopping.set(stop)
    with suppress(StoppedAtStart):
        await _serve_until(stop, area, settings, open_app, on_listening)
    log.info("stopped", area=area)


async def _serve_until(
    stop: asyncio.Event,
    area: str,
    settings: ServiceSettings,
    open_app: OpenApp,
    on_listening: Callable[[], None],
) -> None:
    async with open_app() as registrations:
        server, health, port = await start_server(settings, registrations)
        try:
            admin = await start_admin_server(settings, health)
        except CannotListen:
            await server.stop(grace=0)
            raise
        gc.freeze()  # Loaded modules are never collected.
        log.info("listening", address=address_of(settings.host, port))
        on_listening()
        if reason := await _wait_for_end(stop, registrations, health):
            await _give_up(area, reason, server, health)
        log.info("draining", drain_s=settings.drain_s)
        for service in registrations:
            if service.begin_drain is not None:
                service.begin_drain()
        health.stop()
        if settings.drain_s <= DRAIN_RESERVE_S:  # Otherwise, the server would cut connections before it answers.
            await _drain(registrations)
        stopping = asyncio.create_task(server.stop(grace=settings.drain_s))
        _, still_running = await asyncio.wait([stopping], timeout=max(0.0, settings.drain_s - DRAIN_RESERVE_S))
        if still_running:
            await _drain(registrations)
        await stopping
        if admin is not None:
            await admin.stop(grace=0)


async def watch_readiness(registrations: Sequence[Registration], health: Health) -> None:
    """Update the readiness from the services' checks, repeatedly. Without checks, it stays unchanged."""
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


async def _wait_for_end(stop: asyncio.Event, registrations: Sequence[Registration], health: Health) -> str:
    """Wait for the signal to stop or for a broken service.

    Returns the reason why a service is broken, or an empty string after the signal.
    """
    stopping = asyncio.create_task(stop.wait())
    readiness = asyncio.create_task(watch_readiness(registrations, health))
    waits = [service.wait_until_broken for service in registrations if service.wait_until_broken is not None]
    watching = [asyncio.ensure_future(wait()) for wait in waits]
    ending: list[asyncio.Future[Any]] = [stopping, *watching]
    memory = asyncio.create_task(return_freed_memory())
    try:
        await asyncio.wait([*ending, readiness], return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            return ""
        ended = next(task for task in (*watching, readiness) if task.done())
        if error := ended.exception():
            return f"watching it failed: {error!r}"
        return str(ended.result())
    finally:
        for task in (*ending, readiness, memory):
            task.cancel()


async def _give_up(area: str, reason: str, server: grpc.aio.Server, health: Health) -> NoReturn:
    """End the process of a broken service, so that its supervisor starts another.

    The process exits without Python's shutdown, which would wait for a hanging thread.
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


def trim_heap() -> None:
    """Return freed memory to the system. Without glibc, this does nothing.

    glibc keeps the free memory of its arenas: after a few hundred requests of megabytes, 300 MiB stayed unused.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def return_freed_memory() -> None:
    """Trim the heap periodically."""
    while True:
        await asyncio.sleep(RETURN_INTERVAL_S)
        await asyncio.to_thread(trim_heap)
