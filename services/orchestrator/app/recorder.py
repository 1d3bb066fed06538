"""Gives every event of one execution its envelope, stores it, and shows it to whoever watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Failure, PaganticError
from pagantic_common.domain.messages import Message
from pagantic_common.telemetry.scope import current_correlation
from services.orchestrator.core.events import Completed, ContentDelta, Event, Payload
from services.orchestrator.core.response import Response
from services.orchestrator.core.run import Transition
from services.orchestrator.ports import ExecutionRecord, Journal

WATCHER_CAPACITY = 4096


class Recorder:
    """The journal and the watchers of one execution.

    Invariants:
        1. Stored events have sequences 1, 2, 3 …; an event is stored before it is shown.
        2. Every watcher sees every stored event from the first, and ends after Completed, or with an error when the
           execution could not be recorded.
        3. An execution finishes once: the first terminal transition that is given counts, whatever is cancelled.
    """

    def __init__(self, journal: Journal, clock: Clock, record: ExecutionRecord) -> None:
        self._journal = journal
        self._clock = clock
        self.record = record
        self._stored: list[Event] = []
        self._watchers: list[asyncio.Queue[Event | PaganticError | None]] = []
        self._order = asyncio.Lock()  # parallel tool calls emit at the same time
        self._finishing: asyncio.Future[None] | None = None
        self._end: PaganticError | None = None
        self.is_ended = False

    @property
    def is_finishing(self) -> bool:
        """Whether the outcome is decided."""
        return self._finishing is not None

    async def emit(self, payload: Payload, *, layer: str, action: str, **particulars: Any) -> None:
        """Store and show an event; text that streams by is only shown.

        Args:
            payload: What happened.
            layer: The service where it happened.
            action: Its name in spans and metrics.
            **particulars: `duration_s`, `failure`, `tool_call_id`, `caused_by` of the envelope.
        """
        particulars |= {"layer": layer, "action": action}
        if isinstance(payload, ContentDelta):
            self._show(self._envelope(payload, **particulars))
            return
        # A cancellation must not come between storing an event and counting it.
        await asyncio.shield(asyncio.ensure_future(self._store(payload, particulars)))

    def note_step(self, name: str, failure: Failure | None = None) -> None:
        """Remember the last step; it is stored with the next event."""
        last_failure = failure or self.record.last_failure
        self.record = replace(
            self.record, last_step=name, total_steps=self.record.total_steps + 1, last_failure=last_failure
        )

    async def finish(self, transition: Transition, response: Response, turn: Sequence[Message]) -> None:
        """Store the terminal transition and the response together, show them, and end every watch."""
        if self._finishing is None:
            self._finishing = asyncio.ensure_future(self._store_end(transition, response, turn))
        await asyncio.shield(self._finishing)

    def abandon(self, error: PaganticError) -> None:
        """End every watch with an error: the execution's end could not be recorded."""
        if not self.is_ended:
            self.is_ended = True
            self._end = error
            for watcher in self._watchers:
                watcher.put_nowait(error)

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Give every stored event so far, then what comes, until the end."""
        queue: asyncio.Queue[Event | PaganticError | None] = asyncio.Queue()
        for stored in self._stored:
            queue.put_nowait(stored)
        if self.is_ended:
            queue.put_nowait(self._end)
        self._watchers.append(queue)
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, PaganticError):
                    raise event
                yield event
        finally:
            with contextlib.suppress(ValueError):
                self._watchers.remove(queue)

    async def _store(self, payload: Payload, particulars: dict[str, Any]) -> None:
        async with self._order:
            event = self._envelope(payload, **particulars)
            if isinstance(payload, Transition):
                self.record = replace(
                    self.record, state=payload.target, entered_at=event.timestamp, attempt=payload.attempt
                )
            await self._journal.append(event, self.record)
            self._stored.append(event)
            self._show(event)

    async def _store_end(self, transition: Transition, response: Response, turn: Sequence[Message]) -> None:
        async with self._order:
            moved = self._envelope(
                transition, layer="orchestrator", action="lifecycle.transition", failure=response.failure
            )
            took_s = (moved.timestamp - self.record.started_at).total_seconds()
            completed = self._envelope(
                Completed(response),
                layer="orchestrator",
                action="execution.end",
                duration_s=took_s,
                failure=response.failure,
            )
            completed = replace(completed, sequence=moved.sequence + 1)
            record = replace(
                self.record,
                state=transition.target,
                entered_at=moved.timestamp,
                response=response,
                last_failure=response.failure or self.record.last_failure,
            )
            await self._journal.finish([moved, completed], record, turn)
            self.record = record
            self.is_ended = True
            for event in (moved, completed):
                self._stored.append(event)
                self._show(event)
            for watcher in self._watchers:
                watcher.put_nowait(None)

    def _show(self, event: Event) -> None:
        for watcher in self._watchers:
            # A watcher that has stopped reading loses streamed text first, never a stored event.
            if event.is_stored or watcher.qsize() < WATCHER_CAPACITY:
                watcher.put_nowait(event)

    def _envelope(self, payload: Payload, *, caused_by: str = "", **particulars: Any) -> Event:
        correlation = replace(
            current_correlation(),
            request_id=self.record.request_id,
            session_id=self.record.session_id,
            trace_id=self.record.trace_id,
            caused_by=caused_by,
        )
        return Event(
            correlation=correlation,
            sequence=len(self._stored) + int(not isinstance(payload, ContentDelta)),
            timestamp=self._clock.now(),
            attempt=self.record.attempt,
            payload=payload,
            **particulars,
        )
