"""The thread that owns an engine: it gets a plan from the scheduler, has the engine decode it, and delivers events.

Theory of operation. One lock, `_changed`, guards the scheduler and all state of the loop. The thread holds the lock
while it makes decisions and applies results, which takes a few hundred microseconds. It releases the lock while the
engine decodes, which takes milliseconds. Callers can thus submit and cancel during a step, with effect from
the next step. Only this thread uses the engine, and it does so without the lock.

Invariants:
    1. Only this thread decodes, changes the cache, and runs a change from `when_idle`. During a change, nothing is
       decoded.
    2. Every receiver gets its events in order. The last event is Finished or Failed, unless the request was cancelled.
    3. Events are posted together: a step wakes the receivers' event loop at most once, and text wakes it at most once
       per `stream_interval_s`. The first event and the end of an answer are never delayed.
    4. Once `broken_because` is set, no request is accepted, and no event of the scheduler is delivered.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Internal, Unavailable
from pagantic_common.telemetry.logging import get_logger
from services.inference.app.cell_operations import Copy, apply_operation
from services.inference.app.draft_engine import DraftEngine
from services.inference.core.scheduling.batching import Limits, Plan, Scheduler
from services.inference.core.scheduling.branches import (
    DecodeRequest,
    Failed,
    FailureCause,
    Finished,
    Progress,
    SchedulerEvent,
)
from services.inference.core.scheduling.operations import Cells
from services.inference.core.scheduling.prefix_tree import CachedRun, PrefixTree
from services.inference.core.scheduling.stored_blocks import Saving, root_of
from services.inference.ports import KvCacheFullError, TextEngine

log = get_logger(__name__)

Deliver = Callable[[SchedulerEvent], None]
Put = Callable[[str, Copy, int], bool]
_STUCK_RETRY_S = 0.05


class EngineLoop:
    """Runs the steps of one engine until `close`.

    Args:
        engine: The engine. Only this thread decodes with it.
        limits: The limits of the scheduler.
        max_idle_tokens: The maximum number of KV cells that finished requests may keep.
        max_parked_bytes: The host memory for KV cells of finished requests that are no longer in the cache.
        clock: The clock for deadlines and costs.
        post: Runs a callback on the receivers' event loop. It may be called from any thread.
        stream_interval_s: The minimum time between two deliveries of text. A delivery costs as much as a short step.
        put: Queues a block for storing, given its name, a function that copies its cells, and its number of tokens.
            Returns False if the queue is full. If `put` is None, nothing is stored.
        model_digest: A digest of the model's files, for the names of stored blocks.
        drafts: The draft model of this engine, if there is one.
    """

    def __init__(
        self,
        engine: TextEngine,
        *,
        limits: Limits,
        max_idle_tokens: int,
        max_parked_bytes: int,
        clock: Clock,
        post: Callable[[Callable[[], None]], object],
        stream_interval_s: float = 0.0,
        put: Put | None = None,
        model_digest: str = "",
        drafts: DraftEngine | None = None,
    ) -> None:
        self.engine = engine
        self.drafts = drafts
        self._max_parked_bytes = max_parked_bytes
        self._max_idle_tokens = max_idle_tokens
        self._put = put
        self._model_digest = model_digest
        draft_model = drafts.model if drafts is not None else None
        self.scheduler = Scheduler(self._empty_tree(), limits, Saving(self._new_root()), draft_model)
        self.broken_because = ""
        self.may_adopt = put is not None
        self._clock = clock
        self._post = post
        self._stream_interval_s = stream_interval_s
        self._held: list[tuple[Deliver, SchedulerEvent]] = []
        self._handed_out_s = -math.inf
        self._deliver: dict[int, Deliver] = {}
        self._changed = threading.Condition()
        self._is_closing = False
        self._change: tuple[Callable[[], None], Future[None]] | None = None
        self._step_started_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: DecodeRequest, deliver: Deliver) -> int:
        """Queue a request and return its number. `deliver` gets the request's events in order.

        The last event is Finished or Failed. Raises Overloaded (INFERENCE_OVERLOADED) if the queue is full, and
        Unavailable (INFERENCE_MODEL_UNAVAILABLE) if the engine is broken or the loop is closing.
        """
        with self._changed:
            self._check_health()
            number = self.scheduler.submit(request)
            self._deliver[number] = deliver
            self._changed.notify()
        return number

    @property
    def root(self) -> bytes:
        """The root from which the names of the engine's blocks are derived, or empty bytes if no blocks are stored."""
        return self.scheduler.saving.root

    @property
    def max_parked_tokens(self) -> int:
        """The maximum number of parked tokens; 0 if the engine cannot restore a part of a copy."""
        if not self.engine.cell_format:
            return 0
        return self._max_parked_bytes // self.engine.kv_bytes_per_token

    def kept_tokens(self, request: DecodeRequest) -> int:
        """Return the number of tokens of a prompt that are cached or parked."""
        with self._changed:
            return self.scheduler.kept_tokens(request)

    def adopt(self, request: DecodeRequest, pieces: Sequence[Cells]) -> bool:
        """Park the first blocks of a prompt, which were read from the store.

        Returns False if the blocks do not fit or are no longer needed.
        """
        with self._changed:
            if self._change is not None or self._is_closing or not self.may_adopt:
                return False
            is_adopted = self.scheduler.adopt(request, pieces)
            self._changed.notify()
        return is_adopted

    def cached_keys(self, reviewed: int) -> frozenset[int]:
        """Return the callers' keys of cached prompt prefixes. Checks at most `reviewed` prompts again."""
        with self._changed:
            return self.scheduler.cached_keys(reviewed)

    def cached_runs(self, tenant: str) -> tuple[int, list[CachedRun]]:
        """Return the number that identifies a tenant's tokens, and the cached and parked tokens of all owners."""
        with self._changed:
            return self.scheduler.cached_runs(tenant)

    def idle_tokens(self) -> int:
        """Return the number of cells that only finished requests hold."""
        with self._changed:
            return self.scheduler.tree.idle_tokens

    def check_capacity(self, tenant: str) -> None:
        """Raise the error that `submit` would raise now for a request from this tenant."""
        with self._changed:
            self._check_health()
            self.scheduler.check_capacity(tenant)

    def cancel(self, number: int) -> None:
        """Stop decoding a request within one step. Delivers no further event."""
        with self._changed:
            if self._deliver.pop(number, None) is not None:
                self.scheduler.cancel(number)

    def cancel_candidate(self, number: int, index: int) -> None:
        """Stop decoding one candidate within one step. The candidate's end is still delivered."""
        with self._changed:
            self.scheduler.cancel_candidate(number, index)

    def when_idle(self, change: Callable[[], None]) -> Future[None]:
        """Run a change of the engine on its thread while nothing is decoded. The engine's cache is empty afterwards.

        New requests wait for a running change. The future fails with the error of the change, or with Unavailable if
        another change is pending or the loop closes.
        """
        done: Future[None] = Future()
        with self._changed:
            if self._change is not None or self._is_closing or self.broken_because:
                done.set_exception(Unavailable("the engine cannot be changed now: it closes, or is changed already"))
            else:
                self._change = (change, done)
                self._changed.notify()
        return done

    def stuck_for_s(self, now_s: float) -> float:
        """Return the age of the current step in seconds, or 0 if no step is running."""
        started_s = self._step_started_s
        if started_s is None:
            return 0.0
        return now_s - started_s

    def give_up(self, reason: str) -> None:
        """Fail all requests and reject new requests, because the thread is stuck or dead."""
        with self._changed:
            if self.broken_because:
                return
            self.broken_because = reason
            # The scheduler itself may be broken, so the request numbers come from the table of receivers.
            self._hand_out([Failed(number, FailureCause.BROKEN, reason) for number in self._deliver])
            self._fail_change(f"the engine is broken: {reason}")

    def close(self) -> None:
        """Fail the remaining requests within one step, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _check_health(self) -> None:
        if self.broken_because:
            raise Unavailable(
                f"the engine is broken: {self.broken_because}", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE
            )
        if self._is_closing:
            raise Unavailable("the engine closes", code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE)

    def _run(self) -> None:
        try:
            while (work := self._next_work()) is not None:
                work()
        except BaseException as error:
            log.exception("the engine's thread died")
            self.give_up(f"its thread died of {type(error).__name__}")

    def _next_work(self) -> Callable[[], None] | None:
        """Wait for the next step, or for a change while the loop is idle.

        Returns the work as a function, or None when the loop closes.
        """
        with self._changed:
            while not self._is_closing and (self.broken_because or not self.scheduler.has_work):
                if self._change is not None:
                    return self._carry_out_change
                self._changed.wait()
            if self._is_closing:
                self._fail_change("the engine closes")
                self._hand_out(self.scheduler.fail(None, "the service stops", FailureCause.CANCELLED))
                return None
            plan = self.scheduler.decide(self._clock.monotonic_s())
            self._hand_out(plan.events)
            if not (plan.slices or plan.operations or plan.events):
                self._changed.wait(_STUCK_RETRY_S)  # no request has a seat, so the loop waits instead of spinning
            return partial(self._carry_out, plan)

    def _fail_change(self, reason: str) -> None:
        if self._change is not None and not self._change[1].done():
            self._change[1].set_exception(Unavailable(reason))

    def _carry_out_change(self) -> None:
        assert self._change is not None  # noqa: S101 - only this thread takes it
        change, done = self._change
        error: Exception | None = None
        try:
            change()
        except Exception as raised:  # noqa: BLE001 - the future carries it to the caller
            error = raised
        with self._changed:
            self._change = None
            limits = replace(
                self.scheduler.limits,
                step_tokens=self.engine.max_batch_tokens,
                prompt_step_tokens=self.engine.max_prompt_batch_tokens,
                mixes_steps=self.engine.mixes_steps,
            )
            self.scheduler.renew(self._empty_tree(), limits, self._new_root())
        if done.done():  # `give_up` has already failed the change
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _empty_tree(self) -> PrefixTree:
        return PrefixTree(
            capacity_tokens=self.engine.kv_capacity_tokens,
            max_sequences=self.engine.max_sequences,
            max_idle_tokens=self._max_idle_tokens,
            max_parked_tokens=self.max_parked_tokens,
        )

    def _new_root(self) -> bytes:
        if self._put is None or not self.engine.cell_format:
            return b""
        return root_of(self._model_digest, self.engine.cell_format)

    def _store(self, name: str, copy: Copy) -> None:
        if self._put is None or not self._put(name, copy, self.scheduler.saving.block_tokens):
            with self._changed:
                self.scheduler.saving.forget(name)

    def _carry_out(self, plan: Plan) -> None:
        self._step_started_s = self._clock.monotonic_s()
        try:
            settle = self._decode(plan)
        finally:
            self._step_started_s = None
        with self._changed:
            if not self.broken_because:
                self._hand_out(settle())

    def _decode(self, plan: Plan) -> Callable[[], Sequence[SchedulerEvent]]:
        """Apply a plan's operations and decode its batch.

        Returns the scheduler call that processes the result. The call must run while the lock is held.
        """
        try:
            for operation in plan.operations:
                apply_operation(self.engine, operation, self._store)
        except Internal as error:
            log.error("the cache failed: all is computed again", error=str(error))  # noqa: TRY400 - an expected failure
            return partial(self._compute_again, plan)
        if not plan.slices:
            return tuple
        if self.drafts is not None:
            plan = self.drafts.draft(plan)
        started_s = self._clock.monotonic_s()
        try:
            logits = self.engine.decode(plan.slices)
        except KvCacheFullError:
            return self.scheduler.refuse
        except Internal as error:
            log.error("a step failed", error=str(error))  # noqa: TRY400 - an expected failure of the engine
            return partial(self.scheduler.fail, plan, str(error))
        return partial(self.scheduler.apply, plan, logits, self._clock.monotonic_s() - started_s)

    def _compute_again(self, plan: Plan) -> Sequence[SchedulerEvent]:
        """Recompute all tokens without the copies that the engine has just rejected and would reject again."""
        if not self.may_adopt:  # no stored block was adopted, so the engine has rejected a copy of its own cells
            self.scheduler.tree.parked.capacity_tokens = 0
        self.may_adopt = False
        return self.scheduler.compute_again(plan)

    def _hand_out(self, events: Sequence[SchedulerEvent]) -> None:
        """Queue the events of a step. Post the queue if an event is urgent or the interval has passed."""
        is_urgent = False
        for event in events:
            deliver = self._deliver.get(event.number)
            if deliver is not None:
                self._held.append((deliver, event))
                is_urgent = is_urgent or not isinstance(event, Progress)
            if isinstance(event, Finished | Failed):
                self._deliver.pop(event.number, None)
        now_s = self._clock.monotonic_s()
        if self._held and (is_urgent or now_s >= self._handed_out_s + self._stream_interval_s):
            batch, self._held = self._held, []
            self._handed_out_s = now_s
            self._post(lambda: _call_all(batch))


def _call_all(batch: Sequence[tuple[Deliver, SchedulerEvent]]) -> None:
    for deliver, event in batch:
        deliver(event)
