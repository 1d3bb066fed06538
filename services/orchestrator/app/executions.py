"""Admits requests, runs each once, lets callers watch and cancel, takes up again what was interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    Aborted,
    Conflict,
    DeadlineExceeded,
    ErrorCode,
    Failure,
    InvalidRequest,
    PaganticError,
    PreconditionFailed,
    Unavailable,
    failure_of,
)
from pagantic_common.telemetry.scope import current_correlation, current_deadline, work_scope
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.planning import create_plan
from services.orchestrator.app.recorder import Recorder
from services.orchestrator.app.runner import Runner
from services.orchestrator.app.running import Job, Registry, Running, TimeLimits, caller_left, time_limits
from services.orchestrator.app.services import Services
from services.orchestrator.app.turns import ConcurrentTurns, Turns
from services.orchestrator.app.usage import total_of
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.events import Completed, Event
from services.orchestrator.core.lifecycle import IllegalInputError, IllegalTransitionError, State
from services.orchestrator.core.plan import Plan, PlanPolicy
from services.orchestrator.core.plan_result import accept_plan
from services.orchestrator.core.replay import Admitted, Replay, replay
from services.orchestrator.core.request import MAX_MESSAGES, Mode, Request, check_request
from services.orchestrator.core.response import InferenceOutput, Response
from services.orchestrator.core.text_size import text_size
from services.orchestrator.ports.journal import ExecutionRecord, Journal

END_TIMEOUT_S = 5.0
RESTART_S = 2.0  # about what a restart takes
_SHUTTING_DOWN = "the orchestrator is shutting down: send the request again under its request_id, and it goes on"
FOLLOW_S = 0.1  # between looks at an execution that another orchestrator runs
FOLLOWED_AT_ONCE = 500  # events


@dataclass(frozen=True, slots=True)
class Limits:
    """What executions may do, and what they cost, by model."""

    max_running: int = 256
    max_running_bytes: int = 16 * 1024 * 1024
    max_request_bytes: int = 1024 * 1024
    max_execution_s: float = 3600.0
    plan_bounds: PlanPolicy = field(default_factory=PlanPolicy)
    concurrent_turns: ConcurrentTurns = ConcurrentTurns.WAIT
    prices: Mapping[str, Prices] = field(default_factory=dict)


class Executions:
    """The use-cases behind Execute, ExecuteStream, ResumeExecution and CancelExecution."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        clock: Clock,
        limits: Limits,
        *,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._services = services
        self.journal = journal
        self._clock = clock
        self._limits = limits
        self.new_request_id = new_id
        self.running = Registry(limits.max_running, limits.max_running_bytes)
        self._turns = Turns(journal, limits.concurrent_turns)
        self._is_draining = False

    def check_size(self, request_id: str, size_bytes: int, message_count: int) -> None:
        """Look at a request before it is decoded: its size as it is encoded, and whether there is room for it.

        Raises InvalidRequest for one that is too large; Overloaded for a new one when too much runs, and for any when
        the requests that are held have too many bytes.
        """
        if size_bytes > self._limits.max_request_bytes:
            raise InvalidRequest(
                f"the request has {size_bytes} bytes, at most {self._limits.max_request_bytes} are taken "
                "(MAX_REQUEST_BYTES): keep long documents in a collection, and a long conversation in a session"
            )
        if message_count > MAX_MESSAGES:
            raise InvalidRequest(
                f"messages has {message_count} entries, at most {MAX_MESSAGES} are taken: keep a long conversation in "
                "a session"
            )
        if request_id in self.running:
            self.running.check_bytes(size_bytes)
        else:
            self.running.check_room(size_bytes)

    async def execute(self, request: Request, fingerprint: str, size_bytes: int = 0) -> Response:
        """Run a request, or join the run or the response of the same id, and return what came of it."""
        found = await self._find(request, fingerprint, size_bytes)
        with self._counted_beside(found, request, size_bytes):
            if isinstance(found, Running):
                with found.watched():
                    return await found.recorder.wait_end()
            async with aclosing(self._follow(found)) as events:
                async for event in events:
                    if isinstance(event.payload, Completed):
                        return event.payload.response
        raise AssertionError("a stream ends with Completed")  # the recorder's invariant 2

    async def stream(self, request: Request, fingerprint: str, size_bytes: int = 0) -> AsyncGenerator[Event, None]:
        """Run or join a request and give its events; the last is Completed.

        Leaving early cancels the run when nobody else watches it. Raises InvalidRequest for a malformed envelope,
        Conflict for another payload under the same id, Overloaded when too much runs already, Aborted when another
        turn of the session runs and turns do not wait.
        """
        found = await self._find(request, fingerprint, size_bytes)
        events = _watch(found) if isinstance(found, Running) else self._follow(found)
        with self._counted_beside(found, request, size_bytes):
            async with aclosing(events):
                async for event in events:
                    yield event

    def _counted_beside(
        self, found: Running | ExecutionRecord, request: Request, size_bytes: int
    ) -> AbstractContextManager[None]:
        """Count the request of a call that waits for what another began: it holds a copy for as long as it waits."""
        is_own = isinstance(found, Running) and found.request is request
        return self.running.held(0 if is_own else size_bytes)

    async def create_plan(self, request: Request, size_bytes: int = 0) -> Plan:
        """Return the plan that a PLAN request would run, checked, without running it.

        Raises InvalidRequest for a malformed envelope or another mode, PreconditionFailed for a plan that is rejected,
        and what the services raise that the planner asks, with a code.
        """
        check_request(request)
        if request.mode is not Mode.PLAN:
            raise InvalidRequest(f"mode {request.mode} has no plan: use PLAN")
        limits = time_limits(request, self._limits.max_execution_s)
        try:
            made = await self._create_plan(request, size_bytes, limits)
        except TimeoutError:
            raise DeadlineExceeded(failure=limits.failure) from None
        except PaganticError as error:
            raise type(error)(failure=failure_from(error), retry_after_s=error.retry_after_s) from None
        plan, failure = accept_plan(request, made, self._limits.plan_bounds)
        if failure is not None:
            raise PreconditionFailed(failure=failure)
        return plan

    async def _create_plan(self, request: Request, size_bytes: int, limits: TimeLimits) -> Plan:
        end = min(current_deadline(), Deadline.after(time.monotonic(), limits.left_s))
        with self.running.counted(size_bytes), work_scope(deadline=end):
            async with asyncio.timeout(limits.left_s):
                return await create_plan(
                    self._services,
                    request,
                    self._clock,
                    self._limits.plan_bounds,
                    partial(self._count_planning, request),
                )

    async def _count_planning(self, request: Request, output: InferenceOutput) -> None:
        used = total_of(request, output.usage, output.model, self._limits.prices)
        if used is not None:
            await self.journal.add_usage(used)

    async def cancel(self, request_id: str) -> State:
        """Cancel an execution and return the state it is in then. Raises NotFound for an unknown id."""
        end = Deadline.after(self._clock.monotonic_s(), END_TIMEOUT_S)
        failure, is_asked = failure_of(ErrorCode.CANCELLED_SIGNAL, "cancelled by CancelExecution"), False
        while True:
            if (running := await self.running.get(request_id)) is not None:
                running.stop(failure)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(running.ended.wait(), END_TIMEOUT_S)
                return (await self.journal.get(request_id)).state
            record = await self.journal.get(request_id)
            if record.is_interrupted and await self._resume(record, stop=failure) is not None:
                continue  # to be ended, and nothing else
            if record.response is not None or end.has_passed(self._clock.monotonic_s()):
                return record.state
            if not is_asked:  # another orchestrator runs it
                await self.journal.request_cancel(request_id)
                is_asked = True
            await asyncio.sleep(FOLLOW_S)

    async def resume(self, request_id: str) -> State:
        """Take an interrupted execution up again, and return the state that it was in.

        Raises NotFound for an unknown id, PreconditionFailed for one that runs, has ended or cannot be read.
        """
        record = await self.journal.get(request_id)
        if not record.is_interrupted or await self._resume(record) is None:
            what = "has ended" if record.response is not None else "runs"
            raise PreconditionFailed(f"execution {request_id!r} is not interrupted: it {what}")
        return record.state

    def begin_drain(self) -> None:
        """Take up nothing any more: what is interrupted waits for another orchestrator, or for the next start."""
        self._is_draining = True

    async def close(self) -> None:
        """Give up what still runs: it is interrupted, and goes on when it is taken up again."""
        tasks = [running.task for running in self.running if running.task is not None]
        for running in self.running:
            running.interrupt(Unavailable(_SHUTTING_DOWN, retry_after_s=RESTART_S))
        if tasks:
            await asyncio.wait(tasks, timeout=END_TIMEOUT_S)

    async def _find(self, request: Request, fingerprint: str, size_bytes: int) -> Running | ExecutionRecord:
        """Return the run of a request, begun now or before, or the record of one that ended or runs elsewhere.

        One that was interrupted goes on; one that was cancelled, or failed in a way that may pass, runs again.
        """
        check_request(request)
        found = await self._begin(request, fingerprint, size_bytes)
        if found.fingerprint != fingerprint:
            raise Conflict(f"request_id {request.request_id!r} was used with another payload: take a new one")
        if isinstance(found, ExecutionRecord) and found.is_interrupted:
            return await self._resume(found) or await self.journal.get(found.request_id)
        if isinstance(found, ExecutionRecord) and found.response is not None and found.response.may_run_again:
            return await self._begin(request, fingerprint, size_bytes, ended=found)
        return found

    async def _begin(
        self, request: Request, fingerprint: str, size_bytes: int, ended: ExecutionRecord | None = None
    ) -> Running | ExecutionRecord:
        """Begin a request, for the first time or after it `ended`, unless it runs.

        One that is being cancelled is waited for. A caller that leaves meanwhile stops what it began.
        """
        while (running := await self.running.get(request.request_id)) is not None:
            if not running.is_stopping:
                return running
            await running.ended.wait()
        registered = self._register(request, fingerprint, size_bytes)
        try:
            takes_turn = self._turns.join(request)
        except Aborted:
            self.running.remove(request.request_id)
            raise
        admission = asyncio.ensure_future(self._admit(request, registered, takes_turn=takes_turn, ended=ended))
        try:
            return await asyncio.shield(admission)
        except asyncio.CancelledError:
            left = caller_left()
            admission.add_done_callback(lambda done: _stop_unwatched(done, left))
            raise

    def _register(self, request: Request, fingerprint: str, size_bytes: int) -> Running:
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
        recorder = Recorder(self.journal, self._clock, record)
        running = Running(recorder, fingerprint, current_deadline(), size_bytes, request)
        self.running.add(request.request_id, running)
        return running

    async def _admit(
        self, request: Request, running: Running, *, takes_turn: bool, ended: ExecutionRecord | None
    ) -> Running | ExecutionRecord:
        admitted = Admitted(request, self._limits.plan_bounds, max_execution_s=self._limits.max_execution_s)
        existing: ExecutionRecord | None = None
        try:
            record = running.recorder.record
            if ended is not None:
                existing = await self._admit_again(running, admitted, ended, takes_turn=takes_turn)
            else:
                existing = await self.journal.admit(record, admitted, takes_turn=takes_turn)
            if existing is None:
                runner = self._runner(running)
                limits = time_limits(request, self._limits.max_execution_s)
                job = Job(request, runner.run, runner.end, limits, request.trace_id)
                running.start(job, self._turns, self.running)
        finally:
            if running.task is None:
                self.running.remove(request.request_id)
                self._turns.leave(request)
                if existing is None:  # whether it is stored is not known
                    self.running.unrecorded.add(request.request_id)
            running.admitted.set()
        return running if existing is None else existing

    async def _admit_again(
        self, running: Running, admitted: Admitted, ended: ExecutionRecord, *, takes_turn: bool
    ) -> ExecutionRecord | None:
        """Begin an ended execution anew, or return the record of one that another orchestrator has begun anew."""
        record = running.recorder.record
        after = await self.journal.admit_again(record, admitted, ended, takes_turn=takes_turn)
        if after is None:
            return await self.journal.get(record.request_id)
        running.recorder = Recorder(self.journal, self._clock, record, after_sequence=after)
        return None

    async def _resume(self, record: ExecutionRecord, stop: Failure | None = None) -> Running | None:
        """Run an interrupted execution on from what the journal knows, or only to its end when it is to stop.

        None when another was faster. Raises PreconditionFailed when it cannot be read. A caller that leaves meanwhile
        leaves a run that nobody watches.
        """
        if (found := await self.running.get(record.request_id)) is not None:
            return found
        if self._is_draining:
            raise Unavailable(_SHUTTING_DOWN, retry_after_s=RESTART_S)
        running = Running(Recorder(self.journal, self._clock, record), record.fingerprint)
        running.stop_failure = stop
        self.running.add(record.request_id, running)
        return await asyncio.shield(asyncio.ensure_future(self._claim(record, running)))

    async def _claim(self, record: ExecutionRecord, running: Running) -> Running | None:
        request_id, is_known_not_mine = record.request_id, False
        joined: Request | None = None
        try:
            if not await self.journal.claim(request_id):
                is_known_not_mine = True
                return None
            events, entries = await self.journal.timeline(request_id), await self.journal.entries(request_id)
            try:
                replayed = replay(entries)
            except (ValueError, IllegalTransitionError, IllegalInputError) as error:
                raise PreconditionFailed(f"execution {request_id!r} cannot be taken up again: {error}") from None
            admitted = next((entry for entry in entries if isinstance(entry, Admitted)), None)
            after = admitted.after_sequence if admitted is not None else 0
            running.recorder = Recorder(
                self.journal,
                self._clock,
                record,
                stored=[event for event in events if event.sequence > after],
                entry_count=len(entries),
                after_sequence=after,
            )
            request = replayed.outcome.run.request
            self.running.resize(running, text_size(request))
            max_execution_s = admitted.max_execution_s if admitted is not None else None
            limits = time_limits(request, max_execution_s or self._limits.max_execution_s)
            limits = limits.after((self._clock.now() - record.started_at).total_seconds())
            self._turns.join(request, is_limited=False)
            joined = request
            runner = self._runner(running, replayed)
            job = Job(request, runner.run, runner.end, limits, record.trace_id)
            running.start(job, self._turns, self.running)
            return running
        finally:
            if running.task is None:
                self.running.remove(request_id)
                if joined is not None:
                    self._turns.leave(joined)
                if not is_known_not_mine:
                    self.running.unrecorded.add(request_id)
            running.admitted.set()

    async def _follow(self, record: ExecutionRecord) -> AsyncGenerator[Event, None]:
        """Give the events of an execution that ended, or that another orchestrator runs; take it up if that dies."""
        sequence = await self.journal.after_sequence(record.request_id)
        while True:
            for event in await self.journal.timeline(record.request_id, sequence, FOLLOWED_AT_ONCE):
                sequence = event.sequence
                yield event
                if isinstance(event.payload, Completed):
                    return
            record = await self.journal.get(record.request_id)
            if record.is_interrupted and (running := await self._resume(record)) is not None:
                async with aclosing(_watch(running, sequence)) as events:
                    async for event in events:
                        yield event
                return
            await asyncio.sleep(FOLLOW_S)

    def _runner(self, running: Running, interrupted: Replay | None = None) -> Runner:
        limits = self._limits
        return Runner(
            self._services,
            self.journal,
            self._clock,
            running.recorder,
            limits.plan_bounds,
            interrupted=interrupted,
            prices=limits.prices,
            deadline=lambda: running.deadline,
        )


async def _watch(running: Running, after: int = 0) -> AsyncGenerator[Event, None]:
    with running.watched():
        async with aclosing(running.recorder.watch(after)) as events:
            async for event in events:
                yield event


def _stop_unwatched(admission: asyncio.Future[Running | ExecutionRecord], failure: Failure) -> None:
    """Stop what was admitted for a caller that had left by then."""
    if not admission.cancelled() and admission.exception() is None:
        admitted = admission.result()
        if isinstance(admitted, Running) and admitted.watchers == 0:
            admitted.stop(failure)
