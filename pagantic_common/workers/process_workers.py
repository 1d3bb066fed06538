"""Worker processes, which protect the service from harmful schemas, grammars, rules and texts.

A process is killed if its work takes too long, and dies if its work takes too much memory. A new process replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar, cast

from pagantic_common.domain.errors import Overloaded, Unavailable
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.metrics import add_gauge, make_counter
from pagantic_common.telemetry.names import WORKERS_BUSY, WORKERS_KILLED, WORKERS_QUEUED
from pagantic_common.telemetry.scope import current_principal
from pagantic_common.workers.fair_queue import FairQueue
from pagantic_common.workers.worker_process import RETRY_AFTER_S, WorkerLimits, WorkerProcess

log = get_logger(__name__)
killed = make_counter(WORKERS_KILLED, "workers that were ended, for what their work took")

ResultT = TypeVar("ResultT")


class ProcessWorkers:
    """Implements Workers as an async context manager that starts and ends the processes.

    Args:
        limits: The limits of the processes and their work.
        is_started_late: Whether each process starts with its first work, because many services never get any work.
    """

    def __init__(self, limits: WorkerLimits, *, is_started_late: bool = False) -> None:
        self._limits = limits
        self._is_started_late = is_started_late
        self._workers = [WorkerProcess(limits) for _ in range(limits.processes)]
        self._idle: list[WorkerProcess] = []
        self._queue: FairQueue[asyncio.Future[WorkerProcess]] = FairQueue(limits.queue_capacity)
        self._threads = ThreadPoolExecutor(limits.processes, thread_name_prefix="worker-pipe")
        self._running: set[asyncio.Future[Any]] = set()
        self._stopping = asyncio.Event()
        add_gauge(WORKERS_BUSY, "workers that work", lambda: len(self._running))
        add_gauge(WORKERS_QUEUED, "pieces of work that wait for a worker", lambda: len(self._queue))

    async def __aenter__(self) -> Self:
        if self._is_started_late:  # `call` starts a process that is not alive.
            self._idle += self._workers
            return self
        loop = asyncio.get_running_loop()
        starts = [loop.run_in_executor(self._threads, worker.start) for worker in self._workers]
        failed = [result for result in await asyncio.gather(*starts, return_exceptions=True) if result is not None]
        if failed:
            await self._stop()
            raise failed[0]
        self._idle += self._workers
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def run(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run work in a worker. If the caller is cancelled, the work still runs to its end, within its limits.

        When all workers are busy, tenants take turns. When the queue is full, the tenant with the most queued work
        cannot add more.
        """
        worker = await self._next_worker()
        call = asyncio.get_running_loop().run_in_executor(self._threads, worker.call, (work, arguments))
        self._running.add(call)
        call.add_done_callback(lambda done: self._give_back(worker, done))
        return cast("ResultT", await asyncio.shield(call))

    async def _next_worker(self) -> WorkerProcess:
        if self._stopping.is_set():
            raise _stops()
        if self._idle:
            return self._idle.pop()
        tenant = current_principal().tenant
        turn: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        refused = self._queue.add(tenant, turn)
        if refused is not None and not refused.done():  # The caller may have left but still be in the queue.
            refused.set_exception(self._full())
        try:
            worker = await turn
        except asyncio.CancelledError:
            self._queue.remove(tenant, turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # The turn came at the same moment.
                self._make_idle(turn.result())
            raise
        if self._stopping.is_set():  # The stop may have begun after the turn came.
            self._make_idle(worker)
            raise _stops()
        return worker

    def _full(self) -> Overloaded:
        return Overloaded(
            f"{len(self._queue)} pieces of work wait already, at most {self._limits.queue_capacity} may",
            retry_after_s=RETRY_AFTER_S,
        )

    def _make_idle(self, worker: WorkerProcess) -> None:
        """Assign the worker to the next waiting call, or mark it as idle."""
        while (turn := self._queue.take()) is not None:
            if not turn.done():
                turn.set_result(worker)
                return
        self._idle.append(worker)

    def _give_back(self, worker: WorkerProcess, call: asyncio.Future[Any]) -> None:
        """Make the worker available again, with a new process if needed. If that fails, the next call tries again."""
        self._running.discard(call)
        error = call.exception()  # The error is also raised in the caller, unless it has left.
        if isinstance(error, Unavailable):
            log.error("a worker is not available", reason=str(error))
        elif not worker.is_alive and not self._stopping.is_set():
            killed.add(1)
            restart = asyncio.get_running_loop().run_in_executor(self._threads, worker.start)
            self._running.add(restart)
            restart.add_done_callback(lambda done: self._give_back(worker, done))
            return
        self._make_idle(worker)

    async def _stop(self) -> None:
        """Let running work end within its time limit, and end the processes."""
        self._stopping.set()
        while (turn := self._queue.take()) is not None:
            if not turn.done():
                turn.set_exception(_stops())
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.to_thread(self._end_processes)

    def _end_processes(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown()


def _stops() -> Unavailable:
    return Unavailable("the service stops", retry_after_s=RETRY_AFTER_S)
