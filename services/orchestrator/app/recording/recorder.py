"""Stores the events of one execution, delivers them to the watchers, and adds up usage."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Failure, PaganticError
from pagantic_common.domain.messages import Message
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.telemetry.metrics import DURATION_BOUNDS_S, make_counter, make_histogram
from pagantic_common.telemetry.names import ORCHESTRATOR_COST, ORCHESTRATOR_EXECUTION_DURATION
from pagantic_common.telemetry.scope import current_scope, current_span_id
from services.orchestrator.app.recording.observing import variant_labels
from services.orchestrator.core.cost import Prices, cost_usd, prices_for
from services.orchestrator.core.execution.events import NAME_OF, STREAMED, Completed, Event, Payload
from services.orchestrator.core.execution.progress import CallBegan, CallEnded, ChildAnswer, Progress, StepEnded
from services.orchestrator.core.execution.replay import Admitted, Entry
from services.orchestrator.core.model.keys import Account
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import Response
from services.orchestrator.core.text_size import text_size
from services.orchestrator.core.turn.run import Transition
from services.orchestrator.ports.journal import ExecutionRecord, Journal, UsageLedger, UsageTotal, Write

WATCHER_CAPACITY = 4096  # maximum backlog of a watcher, in events, before streamed text is dropped

_End = PaganticError | None


class Broadcast:
    """The watchers of one execution.

    Every watcher receives every stored event from the first on. A watch ends after Completed, or with the error that
    stopped the execution. With `keeps_text`, a watcher also receives the text streamed after the last stored event.
    """

    def __init__(self, stored: Sequence[Event] = (), *, keeps_text: bool = False) -> None:
        self._stored: list[Event] = list(stored)
        self._keeps_text = keeps_text
        self._text: list[Event] = []
        self._watchers: list[asyncio.Queue[Event | _End]] = []
        self._ended: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    @property
    def is_ended(self) -> bool:
        """Whether no more events will be delivered."""
        return self._ended.done()

    def show(self, event: Event) -> None:
        """Deliver an event. A slow watcher misses only streamed text, which the response contains in full."""
        if event.is_stored:
            self._stored.append(event)
            self._text.clear()
        elif self._keeps_text:
            self._text.append(event)
        for watcher in self._watchers:
            if event.is_stored or watcher.qsize() < WATCHER_CAPACITY:
                watcher.put_nowait(event)
        if isinstance(event.payload, Completed) and not self.is_ended:
            self._ended.set_result(event.payload.response)
            self._end_watches(None)

    def abandon(self, error: PaganticError) -> None:
        """End every watch with an error, because the end of the execution could not be recorded."""
        if self.is_ended:
            return
        self._ended.set_exception(error)
        self._ended.exception()  # Otherwise asyncio logs an exception that was never retrieved.
        self._end_watches(error)

    def _end_watches(self, end: _End) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(end)

    async def wait_end(self) -> Response:
        """Return the response once it is stored. Raises the error if the end could not be recorded."""
        return await asyncio.shield(self._ended)

    async def watch(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the stored events after a sequence number, the text streamed since, and new events until the end."""
        queue: asyncio.Queue[Event | _End] = asyncio.Queue()
        for event in self._stored:
            if event.sequence > after:
                queue.put_nowait(event)
        for event in self._text:
            queue.put_nowait(event)
        if self.is_ended:
            error = self._ended.exception()
            queue.put_nowait(error if isinstance(error, PaganticError) else None)
        self._watchers.append(queue)
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, PaganticError):
                    raise item
                yield item
        finally:
            with contextlib.suppress(ValueError):
                self._watchers.remove(queue)


MAX_UNSTORED = 64
MAX_UNSTORED_CHARS = 1024 * 1024

execution_duration = make_histogram(
    ORCHESTRATOR_EXECUTION_DURATION, "how long executions took that ended", unit="s", bounds=DURATION_BOUNDS_S
)

cost_counter = make_counter(ORCHESTRATOR_COST, "what executions cost, by the prices of the settings")

_step_attempt: ContextVar[int] = ContextVar("step_attempt", default=0)


@contextlib.contextmanager
def attempt_scope(attempt: int) -> Iterator[None]:
    """Use this attempt number for events emitted in the scope, because a plan's step counts its attempts separately."""
    before = _step_attempt.set(attempt)
    try:
        yield
    finally:
        _step_attempt.reset(before)


@dataclass(slots=True)
class _Batch:
    """Events that are stored together, followed by unstored text that streamed after them."""

    events: list[Event]
    stored: asyncio.Future[None]
    size: int  # in characters


class Recorder:
    """Writes the journal of one execution, and tracks its progress.

    Invariants:
        1. Stored events have sequence numbers without gaps. The numbers start at 1, or after `after_sequence` if an
           earlier run under the same id used the numbers before. An event is stored before it is shown, and events are
           shown in order.
        2. An execution finishes once: the first terminal transition counts, regardless of cancellations.
        3. The run waits for the journal only if an event is emitted with `is_durable`, at the end of the run, and while
           more than MAX_UNSTORED batches or MAX_UNSTORED_CHARS are pending. A failed write fails the next emit.
        4. `progress` reflects the stored entries of the outstanding command.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        record: ExecutionRecord,
        *,
        stored: Sequence[Event] = (),
        entry_count: int = 1,
        after_sequence: int = 0,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self.record = record
        self._parent_span_id = current_scope().parent_span_id  # span of the call that started the run
        self.broadcast = Broadcast(stored, keeps_text=record.is_background)
        self.progress = Progress()
        self._sequence = stored[-1].sequence if stored else after_sequence
        self._after_sequence = after_sequence
        self._position = entry_count
        self._unstored: deque[_Batch] = deque()
        self._unstored_size = 0
        self._failure: BaseException | None = None
        self._finishing: asyncio.Future[None] | None = None

    @property
    def attempt(self) -> int:
        """The current attempt number, either of the plan's step in progress or of the execution."""
        return _step_attempt.get() or self.record.attempt

    @property
    def is_finishing(self) -> bool:
        """Whether the outcome has been decided."""
        return self._finishing is not None

    def follow(self, stored: Awaitable[None]) -> None:
        """Show no events until an earlier journal write is stored; fail if that write fails."""
        self._keep([], asyncio.ensure_future(stored), 0)

    async def emit(
        self,
        payload: Payload,
        *,
        entries: Sequence[Entry] = (),
        is_durable: bool = False,
        caused_by: str = "",
        duration_s: float | None = None,
        failure: Failure | None = None,
        tool_call_id: str = "",
    ) -> None:
        """Store and show an event. Streamed text is only shown.

        Args:
            payload: The content of the event.
            entries: The entries from which the execution can resume, stored with the event.
            is_durable: Whether to wait until the event is stored.
            caused_by: The cause of the event: a step, an inference or a call.
            duration_s: Duration of the work that ended.
            failure: The failure of that work.
            tool_call_id: The id of the tool call to which the event belongs.
        """
        event = self._envelope(
            payload, caused_by=caused_by, duration_s=duration_s, failure=failure, tool_call_id=tool_call_id
        )
        if isinstance(payload, STREAMED):
            if not self._unstored:
                self.broadcast.show(event)
                return
            batch, size = self._unstored[-1], len(payload.text)
            batch.events.append(event)
            batch.size += size
            self._unstored_size += size
            await self._wait(batch.stored, is_durable=False)
            return
        await self._wait(self._store([event], entries, can_wait=not is_durable), is_durable=is_durable)

    async def record_step(self, payloads: Sequence[Payload], entries: Sequence[Entry]) -> None:
        """Store and show the events of a machine step, and store the answer that the step received."""
        events = [self._envelope(payload) for payload in payloads]
        if events or entries:
            await self._wait(self._store(events, entries, can_wait=True), is_durable=False)

    def set_last_step(self, name: str, failure: Failure | None = None) -> None:
        """Set the last step, which is stored with the next event."""
        last_failure = failure or self.record.last_failure
        self.record = replace(
            self.record, last_step=name, total_steps=self.record.total_steps + 1, last_failure=last_failure
        )

    async def finish(
        self,
        transitions: Sequence[Transition],
        response: Response,
        *,
        turn: Sequence[Message] = (),
        entries: Sequence[Entry] = (),
        used: UsageTotal | None = None,
    ) -> None:
        """Store the last transitions and the response together, show their events, and end every watch."""
        if self._finishing is None:
            failure = response.failure
            *before, last = transitions
            envelopes = [self._envelope(transition) for transition in before]
            moved = self._envelope(last, failure=failure)
            took_s = (moved.timestamp - self.record.started_at).total_seconds()
            completed = self._envelope(Completed(response), duration_s=took_s, failure=failure)
            code = failure.code.value if failure is not None and failure.code is not None else ""
            execution_duration.record(took_s, {"mode": self.record.mode.value, "error_code": code, **variant_labels()})
            if used is not None and used.cost_usd:
                cost_counter.add(used.cost_usd, {"model": used.model, **variant_labels()})
            last_failure = failure or self.record.last_failure
            self.record = replace(self.record, response=response, last_failure=last_failure)
            self._finishing = self._store([*envelopes, moved, completed], entries, turn=turn, used=used)
        await self.settle()

    async def settle(self) -> None:
        """Wait until a decided outcome is stored."""
        if self._finishing is not None:
            await asyncio.shield(self._finishing)
            self._publish_stored()  # The write's callback may not have run yet.

    @property
    def has_no_events(self) -> bool:
        """Whether nothing except the admission is stored."""
        return self._sequence == self._after_sequence

    def _store(
        self,
        events: list[Event],
        entries: Sequence[Entry],
        *,
        can_wait: bool = False,
        turn: Sequence[Message] = (),
        used: UsageTotal | None = None,
    ) -> asyncio.Future[None]:
        """Queue events for storing.

        No `await` may come between creating an event and this call, because the events must be queued in the order of
        their sequence numbers.
        """
        self._publish_stored()  # A failed write forbids further writes, but its callback may not have run yet.
        if self._failure is not None:
            raise self._failure
        for entry in entries:
            self._advance(entry)
        write = Write(self.record, tuple(events), tuple(entries), self._position, tuple(turn), used)
        self._position += len(entries)
        stored = asyncio.ensure_future(self._journal.write(write, can_wait=can_wait))
        self._keep(events, stored, text_size(write.entries))  # Count only entries, which repeat large parts of events.
        return stored

    def _keep(self, events: list[Event], stored: asyncio.Future[None], size: int) -> None:
        self._unstored.append(_Batch(events, stored, size))
        self._unstored_size += size
        stored.add_done_callback(self._after_storing)

    def _advance(self, entry: Entry) -> None:
        """Add an entry to the progress of the outstanding command. The command's answer clears the progress."""
        match entry:
            case Admitted():
                return
            case CallBegan() | CallEnded() | StepEnded() | ChildAnswer():
                self.progress.add(entry)
            case _:
                self.progress.answer(entry)

    def _after_storing(self, just_stored: asyncio.Future[None]) -> None:
        if not just_stored.cancelled():
            just_stored.exception()  # Mark the exception as retrieved; errors are handled in order.
        self._publish_stored()

    def _publish_stored(self) -> None:
        """Show the stored events in order, up to the first event with a failed or pending write."""
        while self._failure is None and self._unstored and (stored := self._unstored[0].stored).done():
            if stored.cancelled() or stored.exception() is not None:
                self._failure = asyncio.CancelledError() if stored.cancelled() else stored.exception()
                return
            batch = self._unstored.popleft()
            self._unstored_size -= batch.size
            for event in batch.events:
                self.broadcast.show(event)

    async def _wait(self, stored: asyncio.Future[None], *, is_durable: bool) -> None:
        # Shielded, because a cancellation of the run must not cancel the write.
        if is_durable:
            await asyncio.shield(stored)
        while len(self._unstored) > MAX_UNSTORED or (self._unstored_size > MAX_UNSTORED_CHARS and self._unstored):
            oldest = self._unstored[0].stored
            await asyncio.shield(oldest)
            self._publish_stored()  # The write's callback may not have run yet.

    def _envelope(
        self,
        payload: Payload,
        *,
        caused_by: str = "",
        duration_s: float | None = None,
        failure: Failure | None = None,
        tool_call_id: str = "",
    ) -> Event:
        at_hand, record = current_scope(), self.record
        correlation = CorrelationContext(
            request_id=record.request_id,
            session_id=record.session_id,
            trace_id=record.trace_id,
            span_id=current_span_id(),
            parent_span_id=self._parent_span_id,
            step_name=at_hand.step_name,
            caused_by=caused_by,
        )
        now = self._clock.now()
        if isinstance(payload, Transition):
            self.record = replace(self.record, state=payload.target, entered_at=now, attempt=payload.attempt)
        if not isinstance(payload, STREAMED):
            self._sequence += 1
        name = NAME_OF[type(payload)]
        return Event(
            correlation=correlation,
            sequence=self._sequence,
            timestamp=now,
            layer=name.layer,
            action=name.action,
            attempt=self.attempt,
            payload=payload,
            duration_s=duration_s,
            failure=failure,
            tool_call_id=tool_call_id,
        )


def total_of(request: Request, usage: TokenUsage, model: str, prices: Mapping[str, Prices]) -> UsageTotal | None:
    """Return a request's usage under the alias that served the request, or under the requested alias.

    Returns None if there is no usage.
    """
    alias = request.hints.model
    cost = cost_usd(usage, prices_for(prices, alias, model))
    return account_total(request.account, usage, model or alias, cost, request.session_id)


async def count_usage(
    journal: UsageLedger, account: Account, usage: TokenUsage, model: str, prices: Prices | None
) -> None:
    """Add to an account's usage of a model alias, even if the caller is cancelled meanwhile."""
    used = account_total(account, usage, model, cost_usd(usage, prices))
    if used is not None:
        await asyncio.shield(asyncio.ensure_future(journal.add_usage(used)))


def account_total(
    account: Account, usage: TokenUsage, model: str, cost: float | None, session_id: str = ""
) -> UsageTotal | None:
    """Return an account's usage of a model alias for one request, or None if there is no usage."""
    if not usage.prompt_tokens:  # Otherwise, invented model names would fill the table.
        return None
    return UsageTotal(
        tenant=account.tenant,
        subject=account.subject,
        session_id=session_id,
        model=model or "default",
        requests=1,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=cost or 0.0,
    )
