"""Reads recorded executions, and the results that replays copy from them."""

from __future__ import annotations

from pagantic_common.domain.errors import NotFound, PreconditionFailed
from services.orchestrator.core.admission.experiments import Experiments, as_recorded
from services.orchestrator.core.kernel.command import IllegalAnswerError
from services.orchestrator.core.model.contract import ReplayPolicy
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.replaying.recorded_answers import RecordedAnswers
from services.orchestrator.core.replaying.steps import Record, read_record
from services.orchestrator.core.replaying.taking import take
from services.orchestrator.core.turn.run import IllegalTransitionError
from services.orchestrator.ports.journal import ExecutionJournal


async def read_recorded(journal: ExecutionJournal, key: ExecutionKey, *, has_ended: bool = False) -> Record:
    """Return the record of an execution. With `has_ended`, the execution must have ended.

    Raises NotFound if it does not exist, and PreconditionFailed if it has not ended as required, has no kept request,
    or has unreadable entries.
    """
    stored = await journal.get(key)
    if stored.kept is None:
        raise PreconditionFailed(
            f"execution {key.request_id!r} has no recorded steps: its request did not set keep_request"
        )
    if has_ended and stored.response is None:
        raise PreconditionFailed(f"execution {key.request_id!r} has not ended yet: wait for its end, then replay it")
    try:
        entries = await journal.entries(key)
    except PreconditionFailed:
        raise PreconditionFailed(
            f"the steps of execution {key.request_id!r} cannot be read: its conversation was deleted, or another "
            "version stored them"
        ) from None
    if not entries:
        raise PreconditionFailed(f"execution {key.request_id!r} has no recorded steps: an earlier version ran it")
    try:
        return read_record(entries)
    except (ValueError, IllegalTransitionError, IllegalAnswerError) as error:
        raise PreconditionFailed(f"the steps of execution {key.request_id!r} cannot be read: {error}") from None


async def take_recorded(
    journal: ExecutionJournal, request: Request, policy: ReplayPolicy, experiments: Experiments, bounds: PlanPolicy
) -> tuple[Request, RecordedAnswers]:
    """Return a replay's request with its variant, and the results that it copies from the recorded execution.

    Raises InvalidRequest if results cannot be copied, and the errors of `read_recorded`.
    """
    key = ExecutionKey(request.tenant, policy.request_id)
    record = await read_recorded(journal, key, has_ended=True)
    placed = experiments.place(as_recorded(request, record.admitted.request))
    return placed, take(placed, policy, record, bounds)


async def restore_recorded(journal: ExecutionJournal, request: Request, bounds: PlanPolicy) -> RecordedAnswers | None:
    """Return the recorded results that an interrupted replay uses, or None for any other execution.

    Raises PreconditionFailed if the recorded execution was deleted.
    """
    if request.replay is None:
        return None
    try:
        return (await take_recorded(journal, request, request.replay, Experiments(), bounds))[1]
    except NotFound as error:
        raise PreconditionFailed(f"execution {request.request_id!r} cannot be resumed: {error}") from None
