"""Runs a service as a program: settings, logging, tracing and metrics; errors at the start go to stderr."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn, TextIO, TypeVar

from pagantic_common.domain.defaults import PRIVATE_UMASK
from pagantic_common.domain.errors import PaganticError
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.process.admin import PortInUse
from pagantic_common.rpc.process.serving import OpenApp, serve
from pagantic_common.rpc.process.starting import WaitedTooLong
from pagantic_common.settings import EXIT_CONFIG, ServiceSettings, load_settings
from pagantic_common.telemetry.logging import set_up_logging
from pagantic_common.telemetry.reporting import reporting

EXIT_START_FAILED = 69  # EX_UNAVAILABLE of sysexits.h

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
    try:
        with _reporting(area, settings):
            asyncio.run(serve(area, settings, open_app, on_listening))
    except PaganticError as error:
        _exit_for(area, error)
    except StartFailed as failed:
        _exit_for(failed.area, failed.error)
    except PortInUse as error:
        hint = f"set PAGANTIC_{area.upper()}_{error.setting}, or stop the process that listens there"
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
        except OSError:
            raise PortInUse(f"cannot listen on {host}:{port} for metrics", "METRICS_PORT") from None
        yield
