"""Admits requests, runs each once, lets callers watch and cancel."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.correlation import CorrelationContext
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    Conflict,
    ErrorCode,
    Failure,
    Internal,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    failure_of,
)
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import current_correlation, current_deadline, work_scope
from pagantic_common.telemetry.tracing import trace_scope
from services.orchestrator.app.planning import create_plan
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.runner import Runner
from services.orchestrator.app.services import Services
from services.orchestrator.core.events import Completed, Event
from services.orchestrator.core.lifecycle import State
from services.orchestrator.core.plan import Plan, PlanPolicy
from services.orchestrator.core.plan_result import accept_plan
from services.orchestrator.core.request import Mode, Request, check_request
from services.orchestrator.core.response import Response
from services.orchestrator.ports import ExecutionRecord, Journal

log = get_logger(__name__)

END_TIMEOUT_S = 5.0


class _Running:
    """An execution that has not ended: its task, who watches, and why it is to stop."""

    def __init__(self, recorder: Recorder, fingerprint: str) -> None:
        self.recorder = recorder
        self.fingerprint = fingerprint
        self.admitted = asyncio.Event()
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_started = False
        self.is_ending = False
        self.watchers = 0
        self.stop_failure: Failure | None = None

    def stop(self, failure: Failure) -> None:
        """Cancel the run; the first reason counts. A run that has not started yet ends when it does."""
        if self.stop_failure is None and not self.is_ending:
            self.stop_failure = failure
            if self.is_started and self.task is not None and not self.recorder.is_finishing:
                self.task.cancel()


class Executions:
    """The use-cases behind Execute, ExecuteStream and CancelExecution."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        clock: Clock,
        *,
        max_running: int,
        plan_bounds: PlanPolicy | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._services = services
        self.journal = journal
        self._clock = clock
        self._max_running = max_running
        self._plan_bounds = plan_bounds or PlanPolicy()
        self._new_id = new_id
        self._running: dict[str, _Running] = {}
        self._sessions: dict[str, asyncio.Lock] = {}

    def new_request_id(self) -> str:
        """Return an id for a request that came without one."""
        return self._new_id()

    async def execute(self, request: Request, fingerprint: str) -> Response:
        """Run a request, or join the run or the response of the same id, and return what came of it."""
        async with aclosing(self.stream(request, fingerprint)) as events:
            async for event in events:
                if isinstance(event.payload, Completed):
                    return event.payload.response
        raise AssertionError("a stream ends with Completed")  # the recorder's invariant 2

    async def stream(self, request: Request, fingerprint: str) -> AsyncGenerator[Event, None]:
        """Run or join a request and give its events; the last is Completed.

        Leaving early cancels the run when nobody else watches it. Raises InvalidRequest for a malformed envelope,
        Conflict for another payload under the same id, Overloaded when too much runs already.
        """
        check_request(request)
        while (running := self._running.get(request.request_id)) is not None and not running.admitted.is_set():
            await running.admitted.wait()
        if running is None:
            admission = asyncio.ensure_future(self._admit(request, self._register(request, fingerprint)))
            try:
                running_or_ended = await asyncio.shield(admission)
            except asyncio.CancelledError:
                left = _caller_left()
                admission.add_done_callback(lambda done: _stop_unwatched(done, left))
                raise
            if isinstance(running_or_ended, ExecutionRecord):
                async for event in self._replay(running_or_ended, fingerprint):
                    yield event
                return
            running = running_or_ended
        elif running.fingerprint != fingerprint:
            raise _conflict(request.request_id)
        running.watchers += 1
        try:
            async with aclosing(running.recorder.watch()) as events:
                async for event in events:
                    yield event
        finally:
            running.watchers -= 1
            if running.watchers == 0 and not running.recorder.is_ended:
                running.stop(_caller_left())

    async def create_plan(self, request: Request) -> Plan:
        """Return the plan that a PLAN request would run, checked, without running it.

        Raises InvalidRequest for a malformed envelope or another mode, PreconditionFailed for a plan that is rejected.
        """
        check_request(request)
        if request.mode is not Mode.PLAN:
            raise InvalidRequest(f"mode {request.mode} has no plan: use PLAN")
        made = await create_plan(self._services, request)
        plan, failure = accept_plan(request, made, self._plan_bounds)
        if failure is not None:
            raise PreconditionFailed(failure=failure)
        return plan

    async def cancel(self, request_id: str) -> State:
        """Cancel an execution and return the state it is in then. Raises NotFound for an unknown id."""
        running = self._running.get(request_id)
        if running is not None:
            running.stop(failure_of(ErrorCode.CANCELLED_SIGNAL, "cancelled by CancelExecution"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.ended.wait(), END_TIMEOUT_S)
        return (await self.journal.get(request_id)).state

    async def close(self) -> None:
        """Cancel what still runs and wait for it to end."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for running in list(self._running.values()):
            running.stop(failure_of(ErrorCode.CANCELLED_SIGNAL, "the orchestrator is shutting down: send it again"))
        if tasks:
            await asyncio.wait(tasks, timeout=END_TIMEOUT_S)

    def _register(self, request: Request, fingerprint: str) -> _Running:
        """Take the request's id, at once, so that whoever comes next with it waits."""
        if len(self._running) >= self._max_running:
            raise Overloaded(
                f"{len(self._running)} executions run already, the limit is {self._max_running}", retry_after_s=1.0
            )
        now = self._clock.now()
        record = ExecutionRecord(
            request_id=request.request_id,
            session_id=request.session_id,
            trace_id=request.trace_id or current_correlation().trace_id,
            mode=request.mode,
            started_at=now,
            state=State.INIT,
            entered_at=now,
            attempt=1,
            fingerprint=fingerprint,
        )
        running = _Running(Recorder(self.journal, self._clock, record), fingerprint)
        self._running[request.request_id] = running
        return running

    async def _admit(self, request: Request, running: _Running) -> _Running | ExecutionRecord:
        try:
            existing = await self.journal.admit(running.recorder.record)
            if existing is None:
                running.task = asyncio.create_task(self._run(request, running))
        finally:
            if running.task is None:
                del self._running[request.request_id]
                running.ended.set()
            running.admitted.set()
        return running if existing is None else existing

    async def _replay(self, record: ExecutionRecord, fingerprint: str) -> AsyncGenerator[Event, None]:
        if record.fingerprint != fingerprint:
            raise _conflict(record.request_id)
        if record.response is None:
            raise Conflict(
                f"request {record.request_id!r} was interrupted before it ended: send it again under a new request_id"
            )
        for event in await self.journal.timeline(record.request_id):
            yield event

    async def _run(self, request: Request, running: _Running) -> None:
        runner = Runner(self._services, self.journal, self._clock, running.recorder, self._plan_bounds)
        running.is_started = True
        correlation = CorrelationContext(request_id=request.request_id, session_id=request.session_id)
        timeout = Deadline.after(time.monotonic(), request.hints.timeout_s)
        try:
            # Each caller's own deadline counts where it watches; the run's is the one that its request asks for.
            with (
                trace_scope(request.trace_id),
                work_scope(correlation=correlation, deadline=timeout, is_detached=True),
            ):
                failure = running.stop_failure or await self._drive(request, running, runner)
                if failure is not None:
                    running.is_ending = True
                    await runner.end(request, failure)
        except Exception:
            log.exception("an execution's end could not be recorded")
        finally:
            running.recorder.abandon(Internal("the execution could not be recorded: the orchestrator's log says why"))
            self._running.pop(request.request_id, None)
            running.ended.set()

    async def _drive(self, request: Request, running: _Running, runner: Runner) -> Failure | None:
        """Run until the machine has finished, or return what ended it from outside."""
        try:
            async with asyncio.timeout(request.hints.timeout_s), self._turn(request.session_id):
                await runner.run(request)
        except TimeoutError:
            return failure_of(ErrorCode.CANCELLED_TIMEOUT, "the request's time is up")
        except asyncio.CancelledError:
            if running.stop_failure is None:
                raise
            return running.stop_failure
        except Exception:
            error_id = uuid.uuid4().hex[:12]
            log.exception("unexpected error", error_id=error_id)
            text = f"internal error {error_id}: the orchestrator's log has the particulars"
            return Failure(code=None, message=text)
        return None

    def _turn(self, session_id: str) -> asyncio.Lock:
        """Turns of one conversation follow each other; a request without one waits for nobody."""
        if not session_id:
            return asyncio.Lock()
        if len(self._sessions) > 10 * self._max_running:
            self._sessions = {key: lock for key, lock in self._sessions.items() if lock.locked()}
        return self._sessions.setdefault(session_id, asyncio.Lock())


def _stop_unwatched(admission: asyncio.Future[_Running | ExecutionRecord], failure: Failure) -> None:
    """Stop what was admitted for a caller that had left by then."""
    if not admission.cancelled() and admission.exception() is None:
        admitted = admission.result()
        if isinstance(admitted, _Running) and admitted.watchers == 0:
            admitted.stop(failure)


def _conflict(request_id: str) -> Conflict:
    return Conflict(f"request_id {request_id!r} was used with another payload: take a new one")


def _caller_left() -> Failure:
    if current_deadline().has_passed(time.monotonic()):
        return failure_of(ErrorCode.CANCELLED_TIMEOUT, "the caller's deadline passed")
    return failure_of(ErrorCode.CANCELLED_SIGNAL, "the caller cancelled or went away")
