"""Serves an HTTP application until a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from gateway.web.connections import IDLE_S, BoundedProtocol, Connections
from gateway.web.probes import answering_probes
from gateway.web.settings import DoorSettings
from pagantic_common.domain.addresses import address_of
from pagantic_common.rpc.process.listening import CannotListen, open_socket
from pagantic_common.rpc.process.program import return_freed_memory

MAX_HEADER_BYTES = 32 * 1024


async def serve_app(app: ASGIApp, settings: DoorSettings, path: str, announce: Callable[[str], None]) -> None:
    """Serve a running application, and announce the URL of `path` once every port is open.

    Raises OSError if a port cannot be opened.
    """
    with _listen(settings) as listener:
        async with answering_probes(settings), returning_freed_memory():
            announce(f"http://{address_of(*listener.getsockname()[:2])}{path}")
            with returning_on_sigterm():
                await http_server(app, settings).serve(sockets=[listener])


def _listen(settings: DoorSettings) -> socket.socket:
    """Listen on the port. Raises OSError, which names the port and explains how to choose another port."""
    try:
        return open_socket(settings.host, settings.port)
    except OSError as error:
        refused = CannotListen.because_of(error, settings.host, settings.port, "PORT")
        remedy = f"choose another --port or {settings.variable('port')}, or stop the process that listens there"
        if refused.setting == "HOST":
            remedy = f"set {settings.variable('host')} to an address of this machine"
        raise OSError(f"{refused}: {remedy}") from None


@contextmanager
def returning_on_sigterm() -> Iterator[None]:
    """Make the server return when SIGTERM has stopped it, so that open resources are closed.

    After stopping, the server raises the signal again, which would otherwise end the process immediately.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _return)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _return(_signal: int, _frame: object) -> None:
    """Do nothing, because the server has already stopped."""


def http_server(app: ASGIApp, settings: DoorSettings) -> uvicorn.Server:
    """Return the HTTP server for an application, with limits on its requests."""
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, Connections(settings))),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("x-content-type-options", "nosniff")],
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=round(IDLE_S),
        timeout_graceful_shutdown=round(settings.drain_s),
    )
    return uvicorn.Server(config)


def log_to_stderr() -> None:
    """Write warnings and errors to stderr."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


@asynccontextmanager
async def returning_freed_memory() -> AsyncIterator[None]:
    """Return freed memory to the system periodically while the block runs."""
    returning = asyncio.create_task(return_freed_memory())
    try:
        yield
    finally:
        returning.cancel()
