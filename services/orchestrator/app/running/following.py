"""Follows executions, those that run here and those that another orchestrator runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from services.orchestrator.app.running.admission import Admission
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.execution import Execution
from services.orchestrator.core.execution.events import Completed, Event
from services.orchestrator.ports.journal import ExecutionRecord

FOLLOW_S = 0.1  # between looks at an execution that another orchestrator runs
FOLLOWED_AT_ONCE = 500  # events


async def watch(execution: Execution, after: int = 0) -> AsyncGenerator[Event, None]:
    """Yield the events of an execution that runs here; the last watcher that leaves stops it."""
    with execution.watched():
        async with aclosing(execution.recorder.broadcast.watch(after)) as events:
            async for event in events:
                yield event


async def follow(
    record: ExecutionRecord, environment: Environment, admission: Admission, *, after: int = 0, watches: bool = True
) -> AsyncGenerator[Event, None]:
    """Yield the events of an execution that ended or that another orchestrator runs; resume it if that dies.

    Args:
        record: Of the execution.
        environment: Has the journal.
        admission: Resumes it.
        after: Only events above this sequence.
        watches: Whether the caller counts as a watcher of what is resumed.
    """
    journal = environment.journal
    sequence = max(after, await journal.after_sequence(record.key))
    while True:
        had_ended, known = record.response is not None, sequence
        for event in await journal.timeline(record.key, sequence, FOLLOWED_AT_ONCE):
            sequence = event.sequence
            yield event
            if isinstance(event.payload, Completed):
                return
        if had_ended and sequence == known:  # the caller has its end
            return
        record = await journal.get(record.key)
        resumed = None
        if record.is_interrupted:
            resumed = await admission.resume(record)
        if resumed is not None:
            break
        await environment.clock.sleep(FOLLOW_S)
    left = watch(resumed, sequence) if watches else resumed.recorder.broadcast.watch(sequence)
    async with aclosing(left) as events:
        async for event in events:
            yield event
