"""Executions that run in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    ErrorCode,
    Failure,
    Internal,
    Overloaded,
    PaganticError,
    Unavailable,
    failure_of,
)
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.telemetry.scope import current_deadline, work_scope
from pagantic_common.telemetry.tracing import trace_scope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.turns import Turns
from services.orchestrator.core.request import Request

log = get_logger(__name__)

# A caller ends its call by its own clock, and its gRPC may have rounded the time that it told us up to three digits.
DEADLINE_SLACK_S = 0.05
DEADLINE_ROUNDING_RATIO = 0.01
MAX_UNRECORDED = 10_000  # ids; a journal that fails for long must not fill the memory with them

_NOT_RECORDED = "the execution could not be recorded: the orchestrator's log says why; send it again"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long an execution may still take, and what it is told when that is over."""

    left_s: float
    reason: str

    def after(self, spent_s: float) -> TimeLimits:
        """Return what is left after some time."""
        return replace(self, left_s=self.left_s - spent_s)

    @property
    def failure(self) -> Failure:
        """Why an execution ends that took too long."""
        return failure_of(ErrorCode.CANCELLED_TIMEOUT, self.reason)


def time_limits(request: Request, max_execution_s: float) -> TimeLimits:
    """Return the nearer of the request's own timeout and the service's."""
    timeout_s = request.hints.timeout_s
    if timeout_s is not None and timeout_s <= max_execution_s:
        return TimeLimits(timeout_s, "the request's time is up")
    return TimeLimits(
        max_execution_s, f"the execution took the longest that one may, {max_execution_s:g} s (MAX_EXECUTION_S)"
    )


@dataclass(frozen=True, slots=True)
class Job:
    """How an execution is driven, how it is ended from outside, and how long it may take."""

    request: Request
    drive: Callable[[Request], Awaitable[None]]
    end: Callable[[Request, Failure], Awaitable[None]]
    limits: TimeLimits
    trace_id: str


class Running:
    """An execution that has not ended: its task, who watches, and why it is to stop."""

    def __init__(
        self,
        recorder: Recorder,
        fingerprint: str,
        admitted_for: Deadline | None = None,
        size_bytes: int = 0,
        request: Request | None = None,
    ) -> None:
        self._admitted_for = admitted_for or Deadline()  # until someone watches
        self._watched_until: list[Deadline] = []
        self._times_out_at = Deadline()
        self.recorder = recorder
        self.fingerprint = fingerprint
        self.size_bytes = size_bytes
        self.request = request  # None where the run was resumed
        self.admitted = asyncio.Event()
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_started = False
        self.is_ending = False
        self.watchers = 0
        self.stop_failure: Failure | None = None
        self.interrupted_by: PaganticError | None = None

    @property
    def deadline(self) -> Deadline:
        """The nearest of the request's timeout and the latest deadline among the callers that wait for it."""
        callers = max(self._watched_until, default=self._admitted_for)
        return min(self._times_out_at, callers)

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, so that it ends without an answer."""
        return self.stop_failure is not None and not self.recorder.is_finishing

    def start(self, job: Job, turns: Turns, registry: Registry) -> None:
        """Run a job in a task of its own; the registry forgets it when it has ended."""
        self.task = asyncio.create_task(self._run(job, turns, registry))

    def stop(self, failure: Failure) -> None:
        """Cancel the run; the first reason counts. A run that has not started yet ends when it does."""
        if self.stop_failure is None and self.interrupted_by is None and not self.is_ending:
            self.stop_failure = failure
            if self.is_started and self.task is not None and not self.recorder.is_finishing:
                self.task.cancel()

    def interrupt(self, reason: PaganticError) -> None:
        """Interrupt the run without recording an end; watchers get the reason. A run that is finishing completes."""
        if self.interrupted_by is not None or self.stop_failure is not None:
            return
        self.interrupted_by = reason
        if self.is_started and self.task is not None and not self.is_ending and not self.recorder.is_finishing:
            self.task.cancel()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the caller as a watcher; the last one that leaves a run stops it."""
        since_s = time.monotonic()
        until = current_deadline()
        self.watchers += 1
        self._watched_until.append(until)
        try:
            yield
        finally:
            self.watchers -= 1
            self._watched_until.remove(until)
            if self.watchers == 0 and not self.recorder.is_ended:
                self.stop(caller_left(time.monotonic() - since_s))

    async def _run(self, job: Job, turns: Turns, registry: Registry) -> None:
        self.is_started = True
        request = job.request
        correlation = CorrelationContext(request_id=request.request_id, session_id=request.session_id)
        self._times_out_at = Deadline.after(time.monotonic(), job.limits.left_s)
        lost: PaganticError = Internal(_NOT_RECORDED)
        try:
            # Callers come and go, each with a deadline of its own: every command takes the deadline of its beginning.
            with trace_scope(job.trace_id), work_scope(correlation=correlation, is_detached=True):
                failure = self.stop_failure
                if failure is None and self.interrupted_by is None:
                    failure = await self._drive(job, turns)
                if failure is not None:
                    self.is_ending = True
                    await job.end(request, failure)
        except Unavailable as error:
            log.warning("an execution's end could not be recorded", reason=str(error))
            lost = error
        except Exception:
            log.exception("an execution's end could not be recorded")
        finally:
            registry.remove(request.request_id)
            turns.leave(request)
            if not self.recorder.is_ended:
                registry.unrecorded.add(request.request_id)
            self.recorder.abandon(self.interrupted_by or lost)

    async def _drive(self, job: Job, turns: Turns) -> Failure | None:
        """Run until the machine has finished, or return what ended it from outside."""
        if job.limits.left_s <= 0:  # it passed while nobody ran it
            return job.limits.failure
        try:
            async with asyncio.timeout(job.limits.left_s), turns.turn(job.request):
                await job.drive(job.request)
        except TimeoutError:
            return job.limits.failure
        except asyncio.CancelledError:
            if self.stop_failure is None and self.interrupted_by is None:
                raise
            return self.stop_failure
        except Unavailable as error:  # the journal is away; failures of services go to the machine
            return failure_from(error)
        except Exception as error:  # noqa: BLE001 - a bug ends the execution that met it
            return Failure(code=None, message=report_bug(log, error))
        return None


class Registry:
    """What runs, by request id, up to a limit of their number and one of their bytes.

    An id is taken at once, so that whoever comes next with it waits.
    """

    def __init__(self, max_running: int, max_bytes: int) -> None:
        self._max_running = max_running
        self._max_bytes = max_bytes
        self._running: dict[str, Running] = {}
        self._used_bytes = 0
        self._others = 0
        self.unrecorded: set[str] = set()  # ended here, and the journal does not know

    def __iter__(self) -> Iterator[Running]:
        return iter(list(self._running.values()))

    @contextmanager
    def counted(self, size_bytes: int) -> Iterator[None]:
        """Count work that is no execution among what runs. Raises Overloaded when as much runs as may."""
        self.check_room(size_bytes)
        self._others += 1
        try:
            with self.held(size_bytes):
                yield
        finally:
            self._others -= 1

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """Count the bytes of a request that a call holds beside what runs. Raises Overloaded when they are too many."""
        if size_bytes:
            self.check_bytes(size_bytes)
        self._used_bytes += size_bytes
        try:
            yield
        finally:
            self._used_bytes -= size_bytes

    @property
    def count(self) -> int:
        """How much runs."""
        return len(self._running) + self._others

    def check_room(self, size_bytes: int = 0) -> None:
        """Raise Overloaded when as much runs as may, or a request of this size would be too much."""
        if self.count >= self._max_running:
            text = f"{self.count} executions run already, the limit is {self._max_running}"
            raise Overloaded(text, retry_after_s=1.0)
        self.check_bytes(size_bytes)

    def check_bytes(self, size_bytes: int) -> None:
        """Raise Overloaded when a request of this size would be too much."""
        if self._used_bytes and self._used_bytes + size_bytes > self._max_bytes:
            sizes = f"{self._used_bytes} bytes already, and this one {size_bytes}"
            raise Overloaded(f"the requests that run have {sizes}, the limit is {self._max_bytes}", retry_after_s=1.0)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._running

    @property
    def has_room_for_others(self) -> bool:
        """Whether so little runs that what nobody waits for may be added."""
        return 2 * self.count < self._max_running and 2 * self._used_bytes < self._max_bytes

    async def get(self, request_id: str) -> Running | None:
        """Return what runs under an id, once it is admitted."""
        while (running := self._running.get(request_id)) is not None and not running.admitted.is_set():
            await running.admitted.wait()
        return running

    def add(self, request_id: str, running: Running) -> None:
        """Take an id that is free. Raises Overloaded when as much runs as may, Unavailable while the journal fails."""
        if len(self.unrecorded) >= MAX_UNRECORDED:
            raise Unavailable(
                f"{len(self.unrecorded)} executions could not be recorded: the journal must take writes again first",
                code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE,
                retry_after_s=1.0,
            )
        self.check_room(running.size_bytes)
        self._running[request_id] = running
        self._used_bytes += running.size_bytes
        self.unrecorded.discard(request_id)

    def resize(self, running: Running, size_bytes: int) -> None:
        """Count the bytes of a run whose request was read after it was added."""
        self._used_bytes += size_bytes - running.size_bytes
        running.size_bytes = size_bytes

    def remove(self, request_id: str) -> None:
        """Free an id."""
        running = self._running.pop(request_id, None)
        if running is not None:
            self._used_bytes -= running.size_bytes
            running.ended.set()
            running.admitted.set()


def caller_left(watched_s: float = 0.0) -> Failure:
    """Return why a caller that watched for `watched_s` seconds left."""
    left_s = current_deadline().remaining_s(time.monotonic())
    if left_s is not None and left_s <= DEADLINE_SLACK_S + DEADLINE_ROUNDING_RATIO * (watched_s + left_s):
        return failure_of(ErrorCode.CANCELLED_TIMEOUT, "the caller's deadline passed")
    return failure_of(ErrorCode.CANCELLED_SIGNAL, "the caller cancelled or went away")
