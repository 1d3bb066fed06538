"""Follows executions that run here or at another orchestrator.

An execution may move while it is followed: it is parked, woken, or resumed after its orchestrator died. If it runs
here, its events come from its broadcast, with the pieces of text. Otherwise they come from the journal.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext

from pagantic_common.domain.errors import Unavailable
from services.orchestrator.app.running.admission import RESTART_S, SHUTTING_DOWN, Admission
from services.orchestrator.app.running.environment import Environment
from services.orchestrator.app.running.execution import Execution, ExecutionParked
from services.orchestrator.core.execution.events import Completed, Event
from services.orchestrator.ports.journal import ExecutionRecord

FOLLOW_S = 0.1  # poll interval if the execution's orchestrator does not announce its writes
FOLLOW_PARKED_S = 1.0
FOLLOWED_AT_ONCE = 500  # number of events


async def follow(
    found: Execution | ExecutionRecord,
    environment: Environment,
    admission: Admission,
    *,
    after: int = 0,
    watches: bool = True,
) -> AsyncGenerator[Event, None]:
    """Yield the events of an execution until its end, wherever it runs. Resume it if its orchestrator dies.

    Raises Unavailable for a parked execution once the orchestrator drains.

    Args:
        found: The execution if it runs here, or else its record.
        environment: Provides the journal.
        admission: Resumes the execution.
        after: Only events with greater sequence numbers are yielded.
        watches: Whether the caller counts as a watcher of an execution that runs here, so that the execution stops when
            its last watcher leaves.
    """
    following = _Following(found, environment, admission, after, watches=watches)
    while following.at is not None:
        async with aclosing(following.events()) as events:
            async for event in events:
                following.after = event.sequence
                yield event


class _Following:
    """The place of an execution that is followed, and the sequence number of the last event that was yielded.

    `at` is the execution if it runs here, its record if it does not, and None once the execution has ended.
    """

    def __init__(
        self,
        found: Execution | ExecutionRecord,
        environment: Environment,
        admission: Admission,
        after: int,
        *,
        watches: bool,
    ) -> None:
        self.at: Execution | ExecutionRecord | None = found
        self.after = after
        self._journal = environment.journal
        self._admission = admission
        self._watches = watches

    def events(self) -> AsyncGenerator[Event, None]:
        """Return the events until the execution ends or moves."""
        if isinstance(self.at, Execution):
            return self._live(self.at)
        if self.at is None:
            raise AssertionError("the execution has ended")
        return self._stored(self.at)

    async def _live(self, execution: Execution) -> AsyncGenerator[Event, None]:
        self.at = None
        try:
            async with aclosing(_watch(execution, self.after, watches=self._watches)) as events:
                async for event in events:
                    yield event
        except ExecutionParked:
            self.at = await self._journal.get(execution.key)

    async def _stored(self, record: ExecutionRecord) -> AsyncGenerator[Event, None]:
        self.at = None
        self.after = max(self.after, await self._journal.after_sequence(record.key))
        with self._journal.watching(record.key) as changes:
            while True:
                had_ended, previous_sequence = record.response is not None, self.after
                events = await self._journal.timeline(record.key, self.after, FOLLOWED_AT_ONCE)
                for event in events:
                    yield event
                if (had_ended and self.after == previous_sequence) or _has_completed(events):
                    return
                record = await self._journal.get(record.key)
                self.at = await self._running(record)
                if self.at is not None:
                    return
                if record.response is None and len(events) < FOLLOWED_AT_ONCE:
                    await changes.wait(_poll_s(record))

    async def _running(self, record: ExecutionRecord) -> Execution | None:
        """Return the execution if it runs here, or is resumed here because nobody runs it."""
        if record.is_interrupted:
            return await self._admission.resume(record)
        if record.wakes_at is not None and self._admission.is_draining:
            raise Unavailable(SHUTTING_DOWN, retry_after_s=RESTART_S)
        return await self._admission.running(record.key)


async def _watch(execution: Execution, after: int, *, watches: bool) -> AsyncGenerator[Event, None]:
    with execution.watched() if watches else nullcontext():
        async with aclosing(execution.recorder.broadcast.watch(after)) as events:
            async for event in events:
                yield event


def _has_completed(events: Sequence[Event]) -> bool:
    return bool(events) and isinstance(events[-1].payload, Completed)


def _poll_s(record: ExecutionRecord) -> float:
    return FOLLOW_S if record.wakes_at is None else FOLLOW_PARKED_S
