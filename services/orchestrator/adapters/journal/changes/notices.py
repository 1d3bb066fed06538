"""Carries messages between the orchestrators of a PostgreSQL database through LISTEN and NOTIFY.

Write transactions do not use NOTIFY, because PostgreSQL would serialize their commits, and each commit would wait for
the disk. Instead, a change is announced after its commit, and only while another process waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast

import psycopg
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from pagantic_common.domain.errors import PaganticError
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.adapters.journal.changes.hub import RENEW_S, Hub
from services.orchestrator.adapters.journal.database import translating_errors

CHANNEL = "pagantic_journal"
RETRY_S = 1.0
LISTEN = text(f"LISTEN {CHANNEL}")
NOTIFY = text("SELECT pg_notify(:channel, message) FROM unnest(CAST(:messages AS text[])) AS message")

log = get_logger(__name__)


class Notices:
    """Sends a process's messages, and reopens the listening connection if it is lost."""

    def __init__(self, engine: Engine, hub: Hub) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._hub = hub
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-notices")
        self._due = asyncio.Event()
        self._listening: Connection | None = None
        self._is_lost = True
        self._had_notifications = True  # the last logged state
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to listen and to send messages."""
        self._hub.on_due = self._due.set
        self._task = asyncio.create_task(self._live())

    async def close(self) -> None:
        """Send the due messages, then stop."""
        self._hub.on_due = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(PaganticError):
            await self._run(self._send, self._hub.take_due())
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        if self._listening is not None:
            _close(self._listening)

    async def _live(self) -> None:
        while True:
            try:
                listening = await self._run(self._listen)
                with self._reading(listening):
                    await self._carry()
            except PaganticError as error:
                self._report(has_notifications=False, reason=str(error))
            except Exception:
                log.exception("unexpected error")
            await asyncio.sleep(RETRY_S)

    async def _carry(self) -> None:
        """Send due messages at once and renew announcements periodically, until the connection is lost."""
        loop = asyncio.get_running_loop()
        renewal_s = loop.time()
        while not self._is_lost:
            if loop.time() >= renewal_s:
                renewal_s = loop.time() + RENEW_S
                self._hub.renew()
                await self._run(self._send, [self._hub.hello()])
            await self._run(self._send, self._hub.take_due())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(renewal_s):
                    await self._due.wait()
            self._due.clear()
            if loop.time() >= renewal_s:
                self._report(has_notifications=self._hub.has_notifications, reason="none comes back")

    @contextmanager
    def _reading(self, listening: Connection) -> Iterator[None]:
        """Handle messages as they arrive. The event loop can read the connection safely, as its only user."""
        driver: psycopg.Connection[Any] = cast("psycopg.Connection[Any]", listening.connection.dbapi_connection)
        loop, number = asyncio.get_running_loop(), driver.fileno()
        self._is_lost = False
        loop.add_reader(number, self._read, driver, number)
        try:
            yield
        finally:
            self._lose(number)
            self._hub.lose()
            _close(listening)

    def _read(self, driver: psycopg.Connection[Any], number: int) -> None:
        try:
            driver.pgconn.consume_input()
        except psycopg.OperationalError:
            self._lose(number)
            return
        while (notice := driver.pgconn.notifies()) is not None:
            self._hub.hear(notice.extra.decode(errors="replace"))

    def _lose(self, number: int) -> None:
        """Stop reading: the driver has closed the lost connection, and its file descriptor may soon be reused."""
        if not self._is_lost:
            self._is_lost = True
            asyncio.get_running_loop().remove_reader(number)
            self._due.set()

    def _listen(self) -> Connection:
        """Return a listening connection from outside the pool."""
        with translating_errors():
            listening = self._engine.connect()
            listening.execute(LISTEN)
            listening.detach()
            self._listening = listening
        return listening

    def _send(self, messages: Sequence[str]) -> None:
        if not messages:
            return
        with translating_errors(), self._engine.connect() as db:
            db.execute(NOTIFY, {"channel": CHANNEL, "messages": list(messages)})

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _report(self, *, has_notifications: bool, reason: str) -> None:
        """Log when messages stop arriving (this process then polls) and when they arrive again."""
        if has_notifications and not self._had_notifications:
            log.info("the journal's notices arrive")
        elif not has_notifications and self._had_notifications:
            log.warning("the journal's notices do not arrive: what waits looks ten times a second", reason=reason)
        self._had_notifications = has_notifications


def _close(listening: Connection) -> None:
    with suppress(DBAPIError):  # The connection may be lost.
        listening.close()
