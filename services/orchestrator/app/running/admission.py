"""Maps a request to an execution, which may be new, running, ended or resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import (
    Aborted,
    Conflict,
    Failure,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from pagantic_common.telemetry.scope import current_correlation, current_deadline
from services.orchestrator.app.recording.recorder import Recorder
from services.orchestrator.app.running.environment import Environment, caller_left, time_limits
from services.orchestrator.app.running.execution import Execution, Start
from services.orchestrator.app.running.recorded import restore_recorded, take_recorded
from services.orchestrator.app.running.registry import Registry
from services.orchestrator.app.storage import StorageSum
from services.orchestrator.core.execution.replay import Admitted, begin, replay
from services.orchestrator.core.guards.rules import guards_request
from services.orchestrator.core.kernel.command import IllegalAnswerError
from services.orchestrator.core.model.contract import ReplayPolicy
from services.orchestrator.core.model.keys import Account, ExecutionKey
from services.orchestrator.core.model.request import KeptRequest, Request
from services.orchestrator.core.model.request_check import check_metadata, check_request
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.text_size import text_size
from services.orchestrator.core.turn.run import IllegalTransitionError, State
from services.orchestrator.ports.journal import ExecutionRecord

RESTART_S = 2.0  # approximate duration of a restart
SHUTTING_DOWN = "the orchestrator is shutting down: send the request again under its request_id, and it goes on"


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as it was received.

    Attributes:
        fingerprint: Hash of the payload, which must match under the same id.
        size_bytes: The encoded size.
        has_new_id: Whether the id was generated for this request, so that no execution can have it yet.
        kept: The part of the request to keep with the execution, or None.
    """

    request: Request
    fingerprint: str
    size_bytes: int = 0
    has_new_id: bool = False
    kept: KeptRequest | None = None


class Admission:
    """Admits each request id once, and resumes interrupted and parked executions."""

    def __init__(self, environment: Environment, registry: Registry) -> None:
        self._environment = environment
        self._journal = environment.journal
        self._clock = environment.clock
        self._turns = environment.turns
        self._registry = registry
        self.is_draining = False

    def begin_drain(self) -> None:
        """Stop resuming executions. Interrupted executions wait for another orchestrator, or for the next start."""
        self.is_draining = True

    async def find(self, submission: Submission, ended: ExecutionRecord | None = None) -> Execution | ExecutionRecord:
        """Return the running execution of a request, or the record of an execution that ended or runs elsewhere.

        A new request starts an execution, and an interrupted execution is resumed. An execution that was cancelled or
        failed temporarily runs again; `ended` is then its record. If the caller is cancelled meanwhile, its new
        execution stops. Raises InvalidRequest if the envelope is malformed, and Conflict if the id was used with
        another payload or by another caller.
        """
        request = submission.request
        _check(submission)
        existing: Execution | ExecutionRecord | None = await self.running(request.key)
        answers: RecordedAnswers | None = None
        if existing is None and request.replay is not None:
            existing = await self._existing(submission, ended)  # The recorded execution may have been deleted.
        if existing is None and request.replay is not None:
            submission, answers = await self._take(submission, request.replay)
            existing = await self.running(request.key)
        if existing is None:
            execution, takes_turn = self._register(submission)
            admission = self._admit(submission, execution.recorder, ended, answers, takes_turn=takes_turn)
            execution.task = asyncio.create_task(execution.live(admission, self._seat(execution)))
            existing = await _admission_of(execution) or execution
        if existing.fingerprint != submission.fingerprint:
            raise Conflict(
                f"request_id {request.request_id!r} was used with another payload or by another caller: take a new one"
            )
        if isinstance(existing, Execution):
            return existing
        return await self._go_on(existing, submission, may_run_again=ended is None)

    async def _go_on(
        self, found: ExecutionRecord, submission: Submission, *, may_run_again: bool
    ) -> Execution | ExecutionRecord:
        """Resume an interrupted execution, or rerun an ended execution if permitted, or else return the record."""
        if found.is_interrupted:
            resumed = await self.resume(found, account=submission.request.account)
            return resumed or await self._journal.get(found.key)
        if may_run_again and found.response is not None and found.response.may_run_again:
            return await self.find(submission, ended=found)
        return found

    async def resume(
        self, record: ExecutionRecord, stop: Failure | None = None, account: Account | None = None
    ) -> Execution | None:
        """Resume an interrupted or parked execution from the journal, or only end it if `stop` is given.

        Without an account, the execution counts for its tenant until its request is read. Returns None if another
        orchestrator was faster. Raises PreconditionFailed if the execution cannot be read. If the caller is cancelled
        meanwhile, the execution continues without watchers.
        """
        while (running := await self._registry.get(record.key)) is not None:
            if not running.is_parked:
                return running
            await running.ended.wait()
        if self.is_draining:
            raise Unavailable(SHUTTING_DOWN, retry_after_s=RESTART_S)
        recorder = Recorder(self._journal, self._clock, record)
        execution = Execution(self._environment, recorder, account=account, halted_by=stop)
        self._registry.add(execution)
        admission = self._claim(execution)
        execution.task = asyncio.create_task(execution.live(admission, self._seat(execution)))
        if await asyncio.shield(execution.admission) is not None:
            return None
        return execution

    async def _take(self, submission: Submission, policy: ReplayPolicy) -> tuple[Submission, RecordedAnswers]:
        """Return a replay with the recorded variant, and the recorded results, which count toward its size."""
        environment = self._environment
        request, answers = await take_recorded(
            self._journal, submission.request, policy, environment.services.experiments, environment.limits.plan_bounds
        )
        return replace(submission, request=request, size_bytes=submission.size_bytes + text_size(answers)), answers

    async def running(self, key: ExecutionKey) -> Execution | None:
        """Return the execution of a key that runs here, or None. Waits for a stopping or parked execution to end."""
        while (running := await self._registry.get(key)) is not None and (running.is_stopping or running.is_parked):
            await running.ended.wait()
        return running

    def _register(self, submission: Submission) -> tuple[Execution, bool]:
        """Reserve the key of a new execution and join the queue for turns.

        Returns the execution, and whether its admission must take the turn.
        """
        request = submission.request
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
            fingerprint=submission.fingerprint,
            tenant=request.tenant,
            is_background=request.is_background,
            kept=submission.kept,
        )
        execution = Execution(
            self._environment,
            Recorder(self._journal, self._clock, record),
            request=request,
            size_bytes=submission.size_bytes,
            account=request.account,
            admitted_for=current_deadline(),
        )
        self._registry.add(execution)
        try:
            return execution, self._turns.join(request)
        except Aborted:
            self._registry.remove(execution, is_recorded=True)
            raise

    @contextmanager
    def _seat(self, execution: Execution) -> Iterator[None]:
        """Free the key and the place of a registered execution when the enclosed work ends."""
        try:
            yield
        finally:
            self._registry.remove(execution, is_recorded=execution.is_recorded)
            if execution.request is not None:
                self._turns.leave(execution.request)

    async def _admit(
        self,
        submission: Submission,
        recorder: Recorder,
        ended: ExecutionRecord | None,
        taken: RecordedAnswers | None,
        *,
        takes_turn: bool,
    ) -> Start | ExecutionRecord:
        """Store a new execution, or return the existing record with its id."""
        limits = self._environment.limits
        try:
            request = self._environment.services.experiments.place(self._guarded(submission.request))
            counted = await self._check_storage(submission)
        except (InvalidRequest, Overloaded):
            existing = await self._existing(submission, ended)  # The request may have been admitted earlier.
            if existing is None:
                raise
            return existing
        admitted = Admitted(request, limits.plan_bounds, max_execution_s=limits.max_execution_s)
        start = Start(recorder, begin(admitted), time_limits(request, limits.max_execution_s), taken)
        if submission.has_new_id and not takes_turn:  # The journal cannot reject it, so do not wait.
            unstored = asyncio.ensure_future(self._journal.admit_new(recorder.record, admitted))
            recorder.follow(unstored)
            return replace(start, unstored=unstored)
        if ended is None:
            existing = await self._journal.admit(recorder.record, admitted, takes_turn=takes_turn)
        else:
            existing, recorder = await self._admit_again(recorder, admitted, ended, takes_turn=takes_turn)
        if existing is not None:
            self._environment.storage.release(counted, submission.size_bytes)
            return existing
        return replace(start, recorder=recorder)

    async def _admit_again(
        self, recorder: Recorder, admitted: Admitted, ended: ExecutionRecord, *, takes_turn: bool
    ) -> tuple[ExecutionRecord | None, Recorder]:
        """Store an ended execution that runs again. Its events follow the events of the earlier run.

        Returns the record of the execution if another orchestrator was faster, and the recorder.
        """
        record = recorder.record
        after = await self._journal.admit_again(record, admitted, ended, takes_turn=takes_turn)
        if after is None:
            return await self._journal.get(record.key), recorder
        return None, Recorder(self._journal, self._clock, record, after_sequence=after)

    async def _check_storage(self, submission: Submission) -> StorageSum | None:
        """Raise Overloaded if the tenant or the session of a new execution has reached its storage limit.

        Returns the tenant's sum to which the execution's bytes were added, or None without a limit.
        """
        request, storage = submission.request, self._environment.storage
        if request.is_turn:
            return await storage.check_session(request.session_key, submission.size_bytes)
        return await storage.check(request.tenant, submission.size_bytes)

    async def _existing(self, submission: Submission, ended: ExecutionRecord | None) -> ExecutionRecord | None:
        """Return the execution that a request already has, or None if the request is new or runs again."""
        if submission.has_new_id or ended is not None:
            return None
        try:
            return await self._journal.get(submission.request.key)
        except NotFound:
            return None

    def _guarded(self, request: Request) -> Request:
        """Return a request that records whether guards check it, so that a resume uses the same setting."""
        guards = self._environment.services.guards
        is_guarded = guards is not None and guards_request(guards.rules, request.tenant)
        return replace(request, is_guarded=is_guarded)

    async def _claim(self, execution: Execution) -> Start | ExecutionRecord:
        """Claim an interrupted execution, or return its record if another orchestrator was faster."""
        record = execution.recorder.record
        was_parked = record.wakes_at is not None
        if not await self._journal.claim(record.key):
            return record
        record = await self._journal.get(record.key)
        events, entries = await self._journal.timeline(record.key), await self._journal.entries(record.key)
        try:
            replayed = replay(entries)
        except (ValueError, IllegalTransitionError, IllegalAnswerError) as error:
            raise PreconditionFailed(f"execution {record.request_id!r} cannot be resumed: {error}") from None
        admitted = replayed.admitted
        request, after = admitted.request, admitted.after_sequence
        recorder = Recorder(
            self._journal,
            self._clock,
            record,
            stored=[event for event in events if event.sequence > after],
            entry_count=len(entries),
            after_sequence=after,
        )
        taken = await restore_recorded(self._journal, request, admitted.bounds)
        self._registry.recount(execution, text_size(request) + text_size(taken), request.account)
        max_execution_s = admitted.max_execution_s or self._environment.limits.max_execution_s
        spent_s = (self._clock.now() - record.started_at).total_seconds() - record.parked_s
        self._turns.join(request, is_limited=False)
        execution.request = request
        limits = time_limits(request, max_execution_s).after(spent_s)
        return Start(recorder, replayed, limits, taken, was_parked=was_parked)


def _check(submission: Submission) -> None:
    check_request(submission.request)
    if submission.kept is not None:
        check_metadata(submission.kept.metadata)


async def _admission_of(execution: Execution) -> ExecutionRecord | None:
    """Return the existing record of an id, or None once the new execution runs.

    If the caller is cancelled meanwhile, the new execution stops.
    """
    try:
        return await asyncio.shield(execution.admission)
    except asyncio.CancelledError:
        failure = caller_left()
        execution.admission.add_done_callback(lambda _: _stop_unwatched(execution, failure))
        raise


def _stop_unwatched(execution: Execution, failure: Failure) -> None:
    """Stop an execution that was admitted after its caller was cancelled."""
    if execution.watcher_count == 0 and not execution.is_background:
        execution.stop(failure)
