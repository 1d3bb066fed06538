"""Workers that are processes, so that no schema, grammar, rule or text can hurt the service.

Work that takes too long is killed with its process, work that takes too much memory kills it; another takes its place.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar, cast

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, Overloaded, Unavailable
from pagantic_common.telemetry.logging import get_logger

log = get_logger(__name__)

MODULE = "services.constraint.adapters.worker"
START_TIMEOUT_S = 60.0
RETRY_AFTER_S = 0.5

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """How many processes there are, what one piece of work may take, and how much work may wait."""

    processes: int
    time_s: float
    memory_mib: int
    queue_capacity: int


class _WorkerGoneError(Exception):
    """The process died while it worked."""


class _TooSlowError(Exception):
    """The work took longer than it may."""


class _Worker:
    """One process and the socket to it. Its methods block, and are called by one thread at a time."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def is_started(self) -> bool:
        """Whether there is a process."""
        return self._connection is not None

    def start(self) -> None:
        """Start a process in place of the one before, if there was one."""
        self.stop()
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(self._limits.memory_mib), str(self._limits.time_s)]
            command = [sys.executable, "-m", MODULE, *arguments]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._connection = Connection(ours.detach())
        if not self._connection.poll(START_TIMEOUT_S):
            self.stop()
            raise Unavailable(f"a worker process did not start within {START_TIMEOUT_S:g} s")
        try:
            self._connection.recv()
        except EOFError:
            self.stop()
            raise Unavailable("a worker process ended while it started") from None

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def call(self, job: tuple[Callable[..., Any], tuple[object, ...]]) -> tuple[bool, Any]:
        """Do a piece of work, once more where its process died: that may not have been its fault."""
        end_s = 0.0
        for attempt in (1, 2):
            if self._connection is None:
                self.start()
            end_s = end_s or time.monotonic() + self._limits.time_s
            try:
                return self._ask(job, end_s)
            except _TooSlowError:
                self.stop()
                raise _too_complex(f"more than {self._limits.time_s:g} s") from None
            except _WorkerGoneError:
                self.stop()
                log.warning("a worker process died", attempt=attempt)
        raise _too_complex(f"more than {self._limits.memory_mib} MiB, or ends its process otherwise")

    def _ask(self, job: tuple[Callable[..., Any], tuple[object, ...]], end_s: float) -> tuple[bool, Any]:
        connection = cast("Connection", self._connection)
        try:
            connection.send(job)
            if not connection.poll(max(0.0, end_s - time.monotonic())):
                raise _TooSlowError
            return cast("tuple[bool, Any]", connection.recv())
        except (EOFError, OSError):
            raise _WorkerGoneError from None


def _too_complex(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"this takes {what}: make the schema, grammar, rule or text simpler", code=ErrorCode.CONSTRAINT_TOO_COMPLEX
    )


class ProcessWorkers:
    """Implements Workers; an async context manager that starts the processes and ends them."""

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self._workers = [_Worker(limits) for _ in range(limits.processes)]
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._threads = ThreadPoolExecutor(limits.processes, thread_name_prefix="worker-pipe")
        self._waiting = 0
        self._running: set[asyncio.Future[Any]] = set()
        self._is_stopping = False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.gather(*(loop.run_in_executor(self._threads, worker.start) for worker in self._workers))
        except BaseException:
            await self._stop()
            raise
        for worker in self._workers:
            self._idle.put_nowait(worker)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run in a worker. A caller that gives up leaves the work to its end, which its limits bring soon."""
        worker = await self._next_worker()
        call = asyncio.get_running_loop().run_in_executor(self._threads, worker.call, (work, arguments))
        self._running.add(call)
        call.add_done_callback(lambda done: self._give_back(worker, done))
        is_result, value = await asyncio.shield(call)
        if not is_result:
            raise value
        return cast("ResultT", value)

    async def _next_worker(self) -> _Worker:
        if self._idle.empty() and self._waiting >= self._limits.queue_capacity:
            raise Overloaded(
                f"{self._waiting} pieces of work wait already, at most {self._limits.queue_capacity} may",
                retry_after_s=RETRY_AFTER_S,
            )
        self._waiting += 1
        try:
            return await self._idle.get()
        finally:
            self._waiting -= 1

    def _give_back(self, worker: _Worker, call: asyncio.Future[Any]) -> None:
        self._running.discard(call)
        error = call.exception()  # it is the caller's, who may have gone
        if worker.is_started or self._is_stopping:
            self._idle.put_nowait(worker)
        else:
            restart = asyncio.get_running_loop().run_in_executor(self._threads, worker.start)
            self._running.add(restart)
            restart.add_done_callback(lambda done: self._give_back(worker, done))
        if isinstance(error, Unavailable):
            log.error("no worker process can be started", reason=str(error))

    async def _stop(self) -> None:
        self._is_stopping = True
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown()
