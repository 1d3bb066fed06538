"""A running execution: its task, its watchers, and the ways in which it can be stopped from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.calls.principal import work_of
from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import Failure, Internal, PaganticError, Unavailable
from pagantic_common.telemetry.logging import get_logger, report_bug
from pagantic_common.telemetry.scope import current_deadline, work_scope
from services.orchestrator.app.effects.driving import drive
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.recording.observing import StateSpans, execution_span, note_failure, variant_scope
from services.orchestrator.app.recording.recorder import Recorder
from services.orchestrator.app.running.driver import Driver
from services.orchestrator.app.running.time_limits import caller_left
from services.orchestrator.core.model.keys import Account, ExecutionKey
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.journal import ExecutionRecord

log = get_logger(__name__)

_NOT_RECORDED = "the execution could not be recorded: the orchestrator's log says why; send it again"


Admit = Callable[["Execution"], Awaitable["Driver | ExecutionRecord"]]
OnEnd = Callable[["Execution", bool], None]  # the flag says whether the execution's end or refusal is in the journal


class Phase(Enum):
    """The phases of an execution in one process, from its admission to its end."""

    ADMITTING = auto()  # reserves its id, and waits for the journal
    RUNNING = auto()
    ENDING = auto()  # stores its decided outcome
    ENDED = auto()


class _Halting(Enum):
    """When a stop or an interruption of an execution takes effect."""

    LATER = auto()  # takes effect once the execution is admitted
    NOW = auto()
    NEVER = auto()


_HALTING = {
    Phase.ADMITTING: _Halting.LATER,
    Phase.RUNNING: _Halting.NOW,
    Phase.ENDING: _Halting.NEVER,
    Phase.ENDED: _Halting.NEVER,
}


class Execution:
    """One execution, from its admission or resume to its end.

    Attributes:
        recorder: The journal and the watchers of the execution.
        request: The request; None for a resumed execution until the journal is read.
        size_bytes: The size counted for the request.
        account: The account for which the execution counts.
        admission: The result of the admission: None if the execution runs here, or else the existing record of its id.
        ended: Set once the registry has removed the execution.
        task: The task that runs the execution; None before its start.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        request: Request | None = None,
        size_bytes: int = 0,
        account: Account | None = None,
        admitted_for: Deadline | None = None,
        halted_by: Failure | PaganticError | None = None,
    ) -> None:
        self.recorder = recorder
        self.request = request
        self.size_bytes = size_bytes
        self.account = account or Account(recorder.record.tenant)
        self.admission: asyncio.Future[ExecutionRecord | None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._phase = Phase.ADMITTING
        self._halted_by = halted_by  # a Failure is recorded as the end; an error interrupts without an end
        self._admitted_for = admitted_for or Deadline()  # applies until there is a watcher
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

    def decide(self) -> None:
        """Record that the outcome is decided, so that the execution can no longer be stopped or interrupted."""
        self._phase = Phase.ENDING

    async def live(self, admit: Admit, on_end: OnEnd) -> None:
        """Have the execution admitted, and run it. However it ends, `on_end` is called."""
        driver = await self._be_admitted(admit, on_end)
        if driver is None:
            return
        lost: PaganticError = Internal(_NOT_RECORDED)
        record = self.recorder.record
        correlation = CorrelationContext(request_id=record.request_id, session_id=record.session_id)
        try:
            # Callers and their deadlines come and go: every command uses the deadline that applies when it starts.
            with (
                execution_span(driver.trace_id, record) as opened,
                work_scope(principal=work_of(*self.account), correlation=correlation, is_detached=True),
                variant_scope(opened, driver.request),
            ):
                reason = self._halted_by
                if reason is None:
                    reason = await self._drive(driver)
                if isinstance(reason, Failure):
                    self.decide()
                    await driver.end(reason)
                if (response := self.recorder.record.response) is not None:
                    note_failure(opened, response.failure)
        except Unavailable as error:
            log.warning("an execution's end could not be recorded", reason=str(error))
            lost = error
        except Exception:
            log.exception("an execution's end could not be recorded")
        finally:
            self._phase = Phase.ENDED
            on_end(self, self.recorder.broadcast.is_ended)
            if isinstance(self._halted_by, PaganticError):
                lost = self._halted_by
            self.recorder.broadcast.abandon(lost)

    async def _be_admitted(self, admit: Admit, on_end: OnEnd) -> Driver | None:
        """Return the driver, or None if the admission was refused. Sets the result of the admission for its waiters."""
        existing: ExecutionRecord | None = None
        try:
            outcome = await admit(self)
            if isinstance(outcome, Driver):
                self._phase = Phase.RUNNING
                self._times_out_at = Deadline.after(time.monotonic(), outcome.limits.left_s)
                self.admission.set_result(None)
                return outcome
            existing = outcome
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.admission.set_exception(error)
            self.admission.exception()  # the caller may be cancelled, and asyncio would log the unretrieved exception
        self._phase = Phase.ENDED
        on_end(self, existing is not None)
        if existing is not None:
            self.admission.set_result(existing)
        return None

    async def _drive(self, driver: Driver) -> Failure | PaganticError | None:
        """Run until the machine has finished. Return the failure or error that stopped it early, or None."""
        limits = driver.limits
        if limits.left_s <= 0:  # the time ran out during an interruption
            return limits.failure
        try:
            async with asyncio.timeout(limits.left_s), driver.turn():
                with StateSpans() as states:
                    await drive(await driver.begin(), driver.scope(), driver.record, states)
        except TimeoutError:
            return limits.failure
        except asyncio.CancelledError:
            if self._halted_by is None:
                raise
            return self._halted_by
        except Unavailable as error:  # the journal is unavailable; the machine handles failures of services
            return failure_from(error)
        except Exception as error:  # noqa: BLE001 - a bug ends the execution that met it
            return Failure(code=None, message=report_bug(log, error))
        return None
