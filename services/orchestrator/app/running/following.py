"""Follows executions that run here or at another orchestrator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from services.orchestrator.app.running.admission import Admission
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.execution import Execution
from services.orchestrator.core.execution.events import Completed, Event
from services.orchestrator.ports.journal import ExecutionRecord, Journal

FOLLOW_S = 0.1  # poll interval for an execution whose orchestrator does not notify this orchestrator of its writes
FOLLOWED_AT_ONCE = 500  # events


async def watch(execution: Execution, after: int = 0) -> AsyncGenerator[Event, None]:
    """Yield the events of an execution that runs here. When its last watcher leaves, the execution stops."""
    with execution.watched():
        async with aclosing(execution.recorder.broadcast.watch(after)) as events:
            async for event in events:
                yield event


async def follow(
    record: ExecutionRecord, environment: Environment, admission: Admission, *, after: int = 0, watches: bool = True
) -> AsyncGenerator[Event, None]:
    """Yield the events of an execution that ended or runs elsewhere. Resume it if its orchestrator dies.

    Args:
        record: The record of the execution.
        environment: Provides the journal.
        admission: Resumes the execution.
        after: Only events with greater sequence numbers are yielded.
        watches: Whether the caller counts as a watcher after a resume.
    """
    sequence = max(after, await environment.journal.after_sequence(record.key))
    resumed: Execution | None = None
    async with aclosing(_stored(record, environment.journal, admission, sequence)) as stored_events:
        async for item in stored_events:
            if isinstance(item, Execution):
                resumed = item
            else:
                sequence = item.sequence
                yield item
    if resumed is None:
        return
    live_events = watch(resumed, sequence) if watches else resumed.recorder.broadcast.watch(sequence)
    async with aclosing(live_events) as events:
        async for event in events:
            yield event


async def _stored(
    record: ExecutionRecord, journal: Journal, admission: Admission, sequence: int
) -> AsyncGenerator[Event | Execution, None]:
    """Yield the stored events after a sequence number. If the execution is resumed here, yield it last."""
    with journal.watching(record.key) as changes:
        while True:
            had_ended, previous_sequence = record.response is not None, sequence
            events = await journal.timeline(record.key, sequence, FOLLOWED_AT_ONCE)
            for event in events:
                sequence = event.sequence
                yield event
            if (had_ended and sequence == previous_sequence) or _has_completed(events):
                return
            record = await journal.get(record.key)
            if record.is_interrupted and (resumed := await admission.resume(record)) is not None:
                yield resumed
                return
            if record.response is None and len(events) < FOLLOWED_AT_ONCE:
                await changes.wait(FOLLOW_S)


def _has_completed(events: Sequence[Event]) -> bool:
    return bool(events) and isinstance(events[-1].payload, Completed)
