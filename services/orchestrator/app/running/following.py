"""Follows executions that run here or at another orchestrator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from services.orchestrator.app.running.admission import Admission
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.execution import Execution, ExecutionParked
from services.orchestrator.core.execution.events import Completed, Event
from services.orchestrator.ports.journal import ExecutionRecord, Journal

FOLLOW_S = 0.1  # poll interval if the execution's orchestrator does not announce its writes
FOLLOW_PARKED_S = 1.0
FOLLOWED_AT_ONCE = 500  # number of events


async def watch(execution: Execution, after: int = 0) -> AsyncGenerator[Event, None]:
    """Yield the events of an execution that runs here. When its last watcher leaves, the execution stops.

    Raises ExecutionParked after the last event before the execution is parked.
    """
    with execution.watched():
        async with aclosing(execution.recorder.broadcast.watch(after)) as events:
            async for event in events:
                yield event


async def follow(
    found: Execution | ExecutionRecord,
    environment: Environment,
    admission: Admission,
    *,
    after: int = 0,
    watches: bool = True,
) -> AsyncGenerator[Event, None]:
    """Yield the events of an execution until its end, wherever it runs. Resume it if its orchestrator dies.

    Args:
        found: The execution if it runs here, or else its record.
        environment: Provides the journal.
        admission: Resumes the execution.
        after: Only events with greater sequence numbers are yielded.
        watches: Whether the caller counts as a watcher of an execution that runs here.
    """
    moved: Execution | ExecutionRecord | None = found
    while moved is not None:
        if isinstance(moved, Execution):
            source = _live(moved, environment.journal, after, watches=watches)
        else:
            after = max(after, await environment.journal.after_sequence(moved.key))
            source = _stored(moved, environment.journal, admission, after)
        moved = None
        async with aclosing(source) as items:
            async for item in items:
                if isinstance(item, Event):
                    after = item.sequence
                    yield item
                else:
                    moved = item


async def _live(
    execution: Execution, journal: Journal, after: int, *, watches: bool
) -> AsyncGenerator[Event | ExecutionRecord | Execution, None]:
    """Yield the events of an execution that runs here. If it is parked, yield its record last."""
    events = watch(execution, after) if watches else execution.recorder.broadcast.watch(after)
    try:
        async with aclosing(events) as live_events:
            async for event in live_events:
                yield event
    except ExecutionParked:
        yield await journal.get(execution.key)


async def _stored(
    record: ExecutionRecord, journal: Journal, admission: Admission, sequence: int
) -> AsyncGenerator[Event | ExecutionRecord | Execution, None]:
    """Yield the stored events after a sequence number. If the execution runs here, yield it last."""
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
            found = await (admission.resume(record) if record.is_interrupted else admission.running(record.key))
            if found is not None:
                yield found
                return
            if record.response is None and len(events) < FOLLOWED_AT_ONCE:
                await changes.wait(_poll_s(record))


def _has_completed(events: Sequence[Event]) -> bool:
    return bool(events) and isinstance(events[-1].payload, Completed)


def _poll_s(record: ExecutionRecord) -> float:
    return FOLLOW_S if record.wakes_at is None else FOLLOW_PARKED_S
