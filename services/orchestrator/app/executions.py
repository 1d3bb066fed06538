"""Runs requests: the use cases behind Execute, ExecuteStream, CreatePlan, CancelExecution and ResumeExecution."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    ErrorCode,
    InvalidRequest,
    PaganticError,
    PreconditionFailed,
    Unavailable,
    failure_of,
)
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.app.create_plan import create_plan
from services.orchestrator.app.running.admission import RESTART_S, SHUTTING_DOWN, Admission, Submission
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.execution import Execution, ExecutionParked
from services.orchestrator.app.running.following import FOLLOW_S, follow
from services.orchestrator.app.running.outside_guards import OutsideGuards
from services.orchestrator.app.running.registry import Registry
from services.orchestrator.core.execution.events import Completed, Event
from services.orchestrator.core.model.keys import Account, ExecutionKey
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.turn.run import State
from services.orchestrator.ports.journal import ExecutionRecord

log = get_logger(__name__)

END_TIMEOUT_S = 5.0
_CANCELLED = failure_of(ErrorCode.CANCELLED_SIGNAL, "cancelled by CancelExecution")


class Executions:
    """Runs, follows, cancels and resumes the executions of one orchestrator."""

    def __init__(self, environment: Environment, *, new_id: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        self._environment = environment
        self._journal = environment.journal
        self._limits = environment.limits
        self.waits = environment.services.waits
        self.new_request_id = new_id
        self.registry = Registry(
            self._limits.max_running,
            self._limits.max_running_bytes,
            max_of_tenant=self._limits.max_running_of_tenant,
            max_of_subject=self._limits.max_running_of_subject,
            max_bytes_of_tenant=self._limits.max_running_bytes_of_tenant,
            has_tenants=self._limits.has_tenants,
        )
        self._admission = Admission(environment, self.registry)
        self.guards = OutsideGuards(environment, self.registry)

    def check_size(self, key: ExecutionKey, account: Account, size_bytes: int) -> None:
        """Check a request's encoded size and the capacity for it before decoding.

        Raises InvalidRequest if the request is too large. Raises Overloaded for a new request if too many executions
        run, and for any request if the held requests have too many bytes.
        """
        if size_bytes > self._limits.max_request_bytes:
            raise InvalidRequest(
                f"the request has {size_bytes} bytes, at most {self._limits.max_request_bytes} are taken "
                "(MAX_REQUEST_BYTES): keep long documents in a collection, and a long conversation in a session"
            )
        if key in self.registry:
            self.registry.check_bytes(account, size_bytes)
        else:
            self.registry.check_room(account, size_bytes)

    async def execute(self, submission: Submission) -> Response:
        """Run a request, or join the execution with the same id, and return the response.

        If that execution has ended, its stored response is returned. Raises the same errors as `stream`.
        """
        execution = await self._admission.find(submission)
        with self._counted_beside(execution, submission):
            if isinstance(execution, Execution):
                with contextlib.suppress(ExecutionParked), execution.watched():
                    return await execution.recorder.broadcast.wait_end()
                execution = await self._journal.get(execution.key)
            return await self._response_of(execution)

    async def _response_of(self, record: ExecutionRecord) -> Response:
        async with aclosing(follow(record, self._environment, self._admission)) as events:
            async for event in events:
                if isinstance(event.payload, Completed):
                    return event.payload.response
        raise AssertionError("a stream ends with Completed")

    async def stream(self, submission: Submission) -> AsyncGenerator[Event, None]:
        """Run or join a request and yield its events; the last event is Completed.

        If the last watcher leaves early, the execution is cancelled. Raises InvalidRequest if the envelope is
        malformed, Conflict if the id was used with another payload, Overloaded if too many executions run, and Aborted
        if another turn of the session runs and turns do not wait.
        """
        execution = await self._admission.find(submission)
        with self._counted_beside(execution, submission):
            async with aclosing(follow(execution, self._environment, self._admission)) as events:
                async for event in events:
                    yield event

    async def follow(self, key: ExecutionKey, after: int) -> AsyncGenerator[Event, None]:
        """Yield the events after a sequence number of an earlier execution; the last event is Completed.

        Closing the stream cancels nothing. Raises NotFound if the id is unknown, and InvalidRequest if the sequence
        number is negative.
        """
        if after < 0:
            raise InvalidRequest(f"after_sequence is {after}: it must not be negative")
        found: Execution | ExecutionRecord | None = await self.registry.get(key)
        if found is None:
            found = record = await self._journal.get(key)
            if record.is_interrupted:
                found = await self._admission.resume(record) or record
        async with aclosing(follow(found, self._environment, self._admission, after=after, watches=False)) as events:
            async for event in events:
                yield event

    def _counted_beside(
        self, found: Execution | ExecutionRecord, submission: Submission
    ) -> AbstractContextManager[None]:
        """Count the caller's copy of the request while it waits for an execution that another call started."""
        if isinstance(found, Execution) and found.request is submission.request:
            return contextlib.nullcontext()
        return self.registry.held(submission.request.account, submission.size_bytes)

    async def create_plan(self, request: Request, size_bytes: int = 0) -> Plan:
        """Return the plan that a PLAN request would run, as described by the function `create_plan`."""
        return await create_plan(request, size_bytes, self._environment, self.registry)

    async def cancel(self, key: ExecutionKey) -> State:
        """Cancel an execution and return its state afterwards. Raises NotFound if the id is unknown."""
        clock = self._environment.clock
        end = Deadline.after(clock.monotonic_s(), END_TIMEOUT_S)
        is_asked = False
        with self._journal.watching(key) as changes:
            while (state := await self._cancel_here(key)) is None:
                record = await self._journal.get(key)
                has_stopped = record.is_interrupted or record.wakes_at is not None
                if has_stopped and await self._admission.resume(record, stop=_CANCELLED) is not None:
                    continue  # Resumed only to be cancelled.
                if record.response is not None or end.has_passed(clock.monotonic_s()):
                    return record.state
                if not is_asked:  # Another orchestrator runs the execution.
                    await self._journal.request_cancel(key)
                    is_asked = True
                await changes.wait(FOLLOW_S, end.at_s - clock.monotonic_s())
        return state

    async def _cancel_here(self, key: ExecutionKey) -> State | None:
        """Stop an execution that runs here, and return its state, or None if it does not run here or was parked."""
        running = await self.registry.get(key)
        if running is None:
            return None
        running.stop(_CANCELLED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await running.ended.wait()
        if running.is_parked:
            return None
        return (await self._journal.get(key)).state

    async def resume(self, key: ExecutionKey) -> State:
        """Resume an interrupted execution, and return its state at the interruption.

        Raises NotFound if the id is unknown, and PreconditionFailed if the execution runs, has ended or cannot be read.
        """
        record = await self._journal.get(key)
        if record.is_interrupted and await self._admission.resume(record) is not None:
            return record.state
        what = "runs" if record.wakes_at is None else "is parked and only waits"
        if record.response is not None:
            what = "has ended"
        raise PreconditionFailed(f"execution {key.request_id!r} is not interrupted: it {what}")

    async def wake(self, key: ExecutionKey) -> bool:
        """Continue a parked execution that is due, unless another orchestrator was faster.

        Returns False after a failure. The execution then stays parked or becomes interrupted, and any orchestrator
        continues it later.
        """
        try:
            record = await self._journal.get(key)
            if record.wakes_at is not None and record.wakes_at <= self._environment.clock.now():
                await self._admission.resume(record)
        except PaganticError as error:
            log.info("a parked execution is not woken yet", request_id=key.request_id, reason=str(error))
            return False
        return True

    async def stop(self, key: ExecutionKey) -> None:
        """Stop an execution if it runs here."""
        running = await self.registry.get(key)
        if running is not None:
            running.stop(_CANCELLED)

    def begin_drain(self) -> None:
        """Stop resuming executions. Interrupted executions wait for another orchestrator, or for the next start."""
        self._admission.begin_drain()

    async def close(self) -> None:
        """Interrupt all running executions, so that they can be resumed."""
        tasks = [running.task for running in self.registry if running.task is not None]
        for running in self.registry:
            running.interrupt(Unavailable(SHUTTING_DOWN, retry_after_s=RESTART_S))
        if tasks:
            await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
