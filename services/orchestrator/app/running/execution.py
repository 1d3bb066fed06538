"""A running execution: its admission, its machine, its watchers, and the ways in which it can be stopped.

Theory of operation. `live` is the task of an execution. It awaits the admission, which gives the position of the
machine, drives the machine to its end, and records each step. Callers come and go: they watch the events, and every
command has the deadline that applies when it starts. A stop or an interruption cancels the task, unless the outcome is
decided. `_HALTING` defines when it takes effect in each phase.

Invariants:
    1. The phases follow each other in the order of `Phase`. An admission that is refused leads to ENDED at once.
    2. The first reason that halts an execution counts. A Failure becomes the end of its machine. An error interrupts it
       without an end, so that it can be resumed.
    3. A decided outcome is always stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum, auto

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    ErrorCode,
    Failure,
    Internal,
    PaganticError,
    PreconditionFailed,
    Unavailable,
    failure_of,
)
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.telemetry.scope import current_deadline, work_scope
from services.orchestrator.app.effects.branches import Branches, Outstanding
from services.orchestrator.app.effects.scope import RunScope, drive
from services.orchestrator.app.effects.table import EFFECTS
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recording.observing import StateSpans, execution_span, note_failure, variant_scope
from services.orchestrator.app.recording.recorder import Recorder, total_of
from services.orchestrator.app.running.environment import Environment, TimeLimits, caller_left
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.events import Payload
from services.orchestrator.core.execution.progress import failed_with
from services.orchestrator.core.execution.replay import Replay
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.model.keys import Account, ExecutionKey
from services.orchestrator.core.model.plan import MAX_PARALLEL_CALLS
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, Response
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.text_size import encoded_bound
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.ending import Failed, Finish
from services.orchestrator.core.turn.run import Outcome, Run
from services.orchestrator.ports.journal import ExecutionRecord

log = get_logger(__name__)

PARK_AFTER_S = 1.0  # Shorter waits are not worth a resume.
_PARKED = "the execution is parked"
_NOT_RECORDED = "the execution could not be recorded: the orchestrator's log says why; send it again"


class Phase(Enum):
    """The phases of an execution in one process, from its admission to its end."""

    ADMITTING = auto()  # The execution reserves its id, and waits for the journal.
    RUNNING = auto()
    ENDING = auto()  # The execution stores its decided outcome.
    ENDED = auto()


class _Halting(Enum):
    """The time at which a stop or an interruption of an execution takes effect."""

    LATER = auto()  # once the execution is admitted
    NOW = auto()
    NEVER = auto()


_HALTING = {
    Phase.ADMITTING: _Halting.LATER,
    Phase.RUNNING: _Halting.NOW,
    Phase.ENDING: _Halting.NEVER,
    Phase.ENDED: _Halting.NEVER,
}


class _HaltedError(Exception):
    """Raised if an execution was halted before its work began."""


class ExecutionParked(PaganticError):
    """The execution was parked. Its watchers then follow the journal."""


@dataclass(frozen=True, slots=True)
class Start:
    """The position from which an admitted execution starts, or continues after an interruption.

    Attributes:
        recorder: The recorder, which continues after the stored events.
        begun: The position of the machine.
        limits: The time limits.
        taken: The results that a replay copies from a recorded execution, or None.
        unstored: The write of the admission, if the execution starts before it is stored.
        was_parked: Whether the execution was parked before.
    """

    recorder: Recorder
    begun: Replay
    limits: TimeLimits
    taken: RecordedAnswers | None = None
    unstored: asyncio.Future[None] | None = None
    was_parked: bool = False

    @property
    def request(self) -> Request:
        """The admitted request with its variant."""
        return self.begun.outcome.run.request


class Execution:
    """One execution, from its admission or resume to its end.

    Attributes:
        recorder: The journal and the watchers of the execution.
        request: The caller's request. A resumed execution has the stored request, and None until it is read.
        size_bytes: The size counted for the request.
        account: The account for which the execution counts.
        admission: The result of the admission: None if the execution runs here, or else the existing record of its id.
        ended: Set once the registry has removed the execution.
        task: The task that runs the execution; None before its start.
        is_recorded: Whether the journal has the end of the execution, another execution with its id, or its parking.
        is_parked: Whether the execution was parked, so that another execution object continues it later.
    """

    def __init__(
        self,
        environment: Environment,
        recorder: Recorder,
        *,
        request: Request | None = None,
        size_bytes: int = 0,
        account: Account | None = None,
        admitted_for: Deadline | None = None,
        halted_by: Failure | PaganticError | None = None,
    ) -> None:
        self._environment = environment
        self.recorder = recorder
        self.request = request
        self.size_bytes = size_bytes
        self.account = account or Account(recorder.record.tenant)
        self.admission: asyncio.Future[ExecutionRecord | None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_recorded = False
        self.is_parked = False
        self._phase = Phase.ADMITTING
        self._halted_by = halted_by
        self._admitted_for = admitted_for or Deadline()  # Applies until there is a watcher.
        self._watched_until: list[Deadline] = []
        self._times_out_at = Deadline()

    @property
    def key(self) -> ExecutionKey:
        """The key of the execution."""
        return self.recorder.record.key

    @property
    def fingerprint(self) -> str:
        """The fingerprint that a request must match to join this execution."""
        return self.recorder.record.fingerprint

    @property
    def watcher_count(self) -> int:
        """Number of callers that wait for the execution."""
        return len(self._watched_until)

    @property
    def is_background(self) -> bool:
        """Whether the execution continues without callers, regardless of their deadlines."""
        return self.recorder.record.is_background

    @property
    def is_stopping(self) -> bool:
        """Whether the execution was asked to stop, so that it ends without an answer."""
        return isinstance(self._halted_by, Failure)

    @property
    def deadline(self) -> Deadline:
        """The earlier of the request's timeout and the latest deadline of the waiting callers.

        A background execution has only the timeout.
        """
        if self.is_background:
            return self._times_out_at
        callers = max(self._watched_until, default=self._admitted_for)
        return min(self._times_out_at, callers)

    def stop(self, failure: Failure) -> None:
        """End the execution with a failure, unless its outcome is decided or it has already been halted."""
        self._halt(failure)

    def interrupt(self, reason: PaganticError) -> None:
        """Halt the execution without an end, so that it can be resumed. Watchers receive the reason."""
        self._halt(reason)

    def _halt(self, reason: Failure | PaganticError) -> None:
        halting = _HALTING[self._phase]
        if self._halted_by is not None or halting is _Halting.NEVER:
            return
        self._halted_by = reason
        if halting is _Halting.NOW and self.task is not None:
            self.task.cancel()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the caller as a watcher. Without watchers, the execution stops unless it runs in the background."""
        since_s = time.monotonic()
        until = current_deadline()
        self._watched_until.append(until)
        try:
            yield
        finally:
            self._watched_until.remove(until)
            if not self._watched_until and not self.is_background:
                self.stop(caller_left(time.monotonic() - since_s))

    async def live(self, admission: Awaitable[Start | ExecutionRecord], seat: AbstractContextManager[None]) -> None:
        """Await the admission, and run the execution to its end. The seat is always left."""
        with seat:
            start = await self._be_admitted(admission)
            if start is None:
                return
            scope = self._scope(start)
            async with (
                self._recorded(start),
                asyncio.timeout(start.limits.left_s),
                self._turn(start),
                self._parking(scope.branches),
            ):
                with StateSpans() as states:
                    await drive(await self._begin(start), scope, self._record, states)

    @asynccontextmanager
    async def _parking(self, branches: Branches) -> AsyncIterator[None]:
        """Park a background execution once the enclosed work has only waited for PARK_AFTER_S."""
        if not self.is_background:
            yield
            return
        parking = asyncio.create_task(self._park(branches))
        try:
            yield
        finally:
            parking.cancel()
            await asyncio.wait([parking])

    async def _park(self, branches: Branches) -> None:
        while not self.is_parked:
            await branches.idle()
            change_count = branches.change_count
            await self._environment.clock.sleep(PARK_AFTER_S)
            if branches.change_count != change_count or (outstanding := branches.outstanding) is None:
                continue
            try:
                await self._park_now(outstanding)
            except PaganticError as error:  # Nothing more can be recorded, so another start must continue the work.
                self.interrupt(error)
                return
        self._halt(ExecutionParked(_PARKED))

    async def _park_now(self, outstanding: Outstanding) -> None:
        """Park the execution, unless one of its waits has ended meanwhile.

        A cancellation waits for the journal, because a parked execution no longer belongs to this orchestrator.
        """
        await self.recorder.emit(events.Parked(outstanding.wakes_at), is_durable=True)
        storing = asyncio.ensure_future(
            self._environment.journal.park(self.key, outstanding.wakes_at, outstanding.wait_ids)
        )
        try:
            self.is_parked = await asyncio.shield(storing)
        except asyncio.CancelledError:
            with suppress(PaganticError):
                self.is_parked = await storing
            raise
        if not self.is_parked:
            await self.recorder.emit(events.Woken(), is_durable=True)

    async def _be_admitted(self, admission: Awaitable[Start | ExecutionRecord]) -> Start | None:
        """Return the start, or None if the admission was refused. Sets the admission's result for its waiters."""
        try:
            admitted = await admission
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._phase = Phase.ENDED
            self.admission.set_exception(error)
            self.admission.exception()  # If the caller is cancelled, asyncio would log the unretrieved exception.
            return None
        if isinstance(admitted, ExecutionRecord):
            self._phase, self.is_recorded = Phase.ENDED, True
            self.admission.set_result(admitted)
            return None
        self._phase = Phase.RUNNING
        self.recorder = admitted.recorder
        self.recorder.progress = admitted.begun.progress
        self._outcome = admitted.begun.outcome
        self._times_out_at = Deadline.after(time.monotonic(), admitted.limits.left_s)
        if admitted.limits.left_s <= 0:  # The time ran out during an interruption.
            self._halted_by = self._halted_by or admitted.limits.failure
        if admitted.unstored is not None:
            admitted.unstored.add_done_callback(self._interrupt_unstored)
        self.admission.set_result(None)
        return admitted

    def _interrupt_unstored(self, stored: asyncio.Future[None]) -> None:
        """Interrupt an execution that could not be stored, to avoid useless decoding."""
        if stored.cancelled():
            return
        error = stored.exception()
        if isinstance(error, PaganticError):
            self.interrupt(error)

    @asynccontextmanager
    async def _recorded(self, start: Start) -> AsyncIterator[None]:
        """Run the enclosed work on behalf of the account, and record the failure that halts it as its end."""
        lost: PaganticError = Internal(_NOT_RECORDED)
        try:
            with self._observed(start):
                with self._halting(start.limits):
                    yield
                if isinstance(self._halted_by, Failure) and not self.is_parked:
                    await self._end(self._halted_by)
        except Unavailable as error:
            log.warning("an execution's end could not be recorded", reason=str(error))
            lost = error
        except Exception:
            log.exception("an execution's end could not be recorded")
        finally:
            self._phase = Phase.ENDED
            self.is_recorded = self.recorder.broadcast.is_ended or self.is_parked
            if isinstance(self._halted_by, PaganticError):
                lost = self._halted_by
            if self.is_parked:
                lost = ExecutionParked(_PARKED)
            self.recorder.broadcast.abandon(lost)

    @contextmanager
    def _observed(self, start: Start) -> Iterator[None]:
        """Run the enclosed work in the execution's span, with its account, its ids and its variant."""
        record = self.recorder.record
        trace_id = record.trace_id if start.begun.is_resumed else start.request.trace_id
        correlation = CorrelationContext(request_id=record.request_id, session_id=record.session_id)
        with (
            execution_span(trace_id, record) as opened,
            work_scope(principal=work_of(*self.account), correlation=correlation, is_detached=True),
            variant_scope(opened, start.request),
        ):
            yield
            if (response := self.recorder.record.response) is not None:
                note_failure(opened, response.failure)

    @contextmanager
    def _halting(self, limits: TimeLimits) -> Iterator[None]:
        """Use an error that stops the enclosed work as the reason for halting the execution."""
        try:
            yield
        except _HaltedError:
            pass
        except TimeoutError:
            self._halted_by = self._halted_by or limits.failure
        except asyncio.CancelledError:
            if self._halted_by is None:
                raise
        # The journal is unavailable, or the session's turn waits. The machine handles failures of services.
        except (Unavailable, PreconditionFailed) as error:
            self._halted_by = failure_from(error)
        except Exception as error:  # noqa: BLE001 - a bug ends only its own execution
            self._halted_by = Failure(code=None, message=report_bug(log, error))

    @asynccontextmanager
    async def _turn(self, start: Start) -> AsyncIterator[None]:
        """Wait for the turn of the session, and hold it during the enclosed work, unless the execution is halted."""
        if self._halted_by is not None:
            raise _HaltedError
        async with self._environment.turns.turn(start.request, is_resumed=start.begun.is_resumed):
            yield

    def _scope(self, start: Start) -> RunScope:
        """Return the scope for the effects of the execution."""
        environment = self._environment
        return RunScope(
            services=environment.services,
            conversations=environment.journal,
            clock=environment.clock,
            recorder=self.recorder,
            effects=EFFECTS,
            tool_slots=asyncio.Semaphore(MAX_PARALLEL_CALLS),
            branches=Branches(),
            may_park=self.is_background,
            deadline=lambda: self.deadline,
            taken=start.taken,
        )

    async def _begin(self, start: Start) -> Outcome:
        """Record the start, waking or resume of the execution, and return its current outcome."""
        outcome = self._outcome
        if self.recorder.has_no_events or isinstance(outcome.command, Finish):
            await self._record(outcome)
        if start.was_parked:
            await self.recorder.emit(events.Woken())
        elif start.begun.is_resumed and not isinstance(outcome.command, Finish):
            # Durable, so that the resumes of an execution that keeps crashing its orchestrator are all counted.
            await self.recorder.emit(events.Resumed(len(self.recorder.progress.steps)), is_durable=True)
        return outcome

    async def _end(self, failure: Failure) -> None:
        """End the machine with a failure from outside, but keep a decided outcome."""
        self._phase = Phase.ENDING
        if self.recorder.is_finishing:
            await self.recorder.settle()
            return
        if self.recorder.has_no_events or isinstance(self._outcome.command, Finish):
            await self._record(self._outcome)
        if isinstance(self._outcome.command, Finish):
            return
        failed = failed_with(self._outcome.run, self.recorder.progress, failure)
        await self._record(machine.step(self._outcome.run, failed), failed)

    async def _record(self, outcome: Outcome, answer: Answer | None = None) -> None:
        """Record the machine's events and the answer that it received, and finally also the response."""
        limits = self._environment.limits
        if answer is not None:
            outcome, answer = fit_response(self._outcome.run, answer, outcome, limits.max_response_bytes)
        self._outcome = outcome
        entries = [] if answer is None else [answer]
        command, run = outcome.command, outcome.run
        if isinstance(command, Finish):
            self._phase = Phase.ENDING
            used = total_of(run.request, command.response.usage, run.model, limits.prices)
            await self.recorder.finish(
                outcome.transitions, command.response, turn=command.turn, entries=entries, used=used
            )
            return
        payloads: list[Payload] = list(outcome.transitions)
        if run.request.variant is not None and self.recorder.has_no_events:
            payloads.append(events.VariantAssigned(run.request.variant))
        if outcome.discarded is not None:
            payloads.append(events.AttemptDiscarded(outcome.discarded.attempt, outcome.discarded.reason))
        await self.recorder.record_step(payloads, entries)


def fit_response(run: Run, answer: Answer, outcome: Outcome, max_bytes: int) -> tuple[Outcome, Answer]:
    """Return the outcome and the answer, or a failure's outcome and answer if the response is too large.

    A message too large to send would break the stream at its end, and would break every later request for the
    response. So the execution fails instead, and its response has no texts. ListSteps still has the results of earlier
    steps if the request is kept; otherwise the texts are lost.
    """
    finish = outcome.command
    if not isinstance(finish, Finish):
        return outcome, answer
    size = encoded_bound(finish.response)
    if size <= max_bytes:
        return outcome, answer
    failure = finish.response.failure
    if failure is None:
        failure = _too_large(size, max_bytes)
        stopped = InferenceOutput("", FinishReason.ERROR, model=outcome.run.model)  # The usage counts for this model.
        answer = Failed(failure, usage=answer.total_usage, output=stopped)
        outcome = machine.step(run, answer)
    turn = outcome.command.turn if isinstance(outcome.command, Finish) else ()
    bare = Finish(_bare(finish.response, failure), turn)
    return replace(outcome, run=replace(outcome.run, outstanding=bare)), answer


def _too_large(size: int, max_bytes: int) -> Failure:
    message = (
        f"the response has up to {size} bytes, at most {max_bytes} can be sent (MAX_MESSAGE_BYTES): ask for less, with "
        "fewer steps, candidates or tool calls; with keep_request, ListSteps has what each earlier step gave"
    )
    return failure_of(ErrorCode.INFERENCE_OUTPUT_TRUNCATED, message, details={"max_bytes": max_bytes})


def _bare(response: Response, failure: Failure) -> Response:
    return Response(
        request_id=response.request_id,
        session_id=response.session_id,
        usage=response.usage,
        failure=replace(failure, caused_by=()),
        finish_reason=response.finish_reason,
        seed=response.seed,
        variant=response.variant,
    )
