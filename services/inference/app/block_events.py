"""Reports to callers that keep an index of the cache: each change of the blocks of their tenant, and the load."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from pagantic_common.domain.clock import Clock
from pagantic_common.telemetry.scope import current_principal
from services.inference.app.generation import Generation
from services.inference.app.models import Models
from services.inference.app.replica_watch import ReplicaWatch
from services.inference.app.workload import Load
from services.inference.core.cached_blocks import MAX_HISTORY, Batch, BlockLog

LOOK_S = 0.1
HEARTBEAT_S = 1.0
MAX_LOGS = 16


@dataclass(frozen=True, slots=True)
class EngineState:
    """How busy the models are.

    Attributes:
        idle_tokens: Cells of the KV caches that are given up when others need them.
        silence_s: The age of the oldest step; None while nothing is decoded.
    """

    load: Load
    idle_tokens: int
    silence_s: float | None


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A batch of changes with the state of the engine, or the state alone.

    Attributes:
        sequence: The number of the batch; without one, that of the last batch.
        is_full: Whether the reader should get what changes slowly, too.
    """

    sequence: int
    state: EngineState
    batch: Batch | None = None
    is_full: bool = False


class BlockEvents:
    """All readers of this replica's events. They wait as watchers of the replica do, and count as such.

    Nothing is queued for a reader: it reads the history of its tenant, and gets a snapshot if that went on without it.
    """

    def __init__(self, models: Models, watch: ReplicaWatch, clock: Clock, *, max_history: int = MAX_HISTORY) -> None:
        self._models = models
        self._watch = watch
        self._clock = clock
        self._max_history = max_history
        self._logs: OrderedDict[str, _TenantLog] = OrderedDict()

    async def reports(self, sequence: int) -> AsyncGenerator[BlockReport, None]:
        """Yield the changes of the current tenant's blocks in the default model, from a sequence number on.

        A number that the history does not have, such as 0, begins with a snapshot. Raises Overloaded
        (INFERENCE_OVERLOADED) when there are as many watchers as may be.
        """
        tenant = current_principal().tenant
        reader = _Reader(sequence, self._clock)
        async with aclosing(self._watch.looks(LOOK_S)) as looks:
            async for _ in looks:
                log = self._log_of(tenant)
                for report in reader.read(log, self._state):
                    yield report

    def _log_of(self, tenant: str) -> BlockLog:
        """Return the log of a tenant as of now; that of the tenant that was read longest ago makes room for it."""
        if tenant not in self._logs:
            # The time in milliseconds is above all numbers of an earlier log, or of the service before it restarted.
            log = BlockLog(math.ceil(self._clock.now().timestamp() * 1000), self._max_history)
            self._logs[tenant] = _TenantLog(tenant, log)
        self._logs.move_to_end(tenant)
        if len(self._logs) > MAX_LOGS:
            self._logs.popitem(last=False)
        kept = self._logs[tenant]
        kept.look(self._models.default_generation, self._clock)
        return kept.log

    def _state(self) -> EngineState:
        workloads = [served.workload for served in self._models.loaded]
        load = self._models.load()
        idle_tokens = sum(workload.loop.idle_tokens() for workload in workloads if isinstance(workload, Generation))
        silence_s = None
        if load.running_sequences:
            now_s = self._clock.monotonic_s()
            silence_s = max(workload.stuck_for_s(now_s) for workload in workloads)
        return EngineState(load, idle_tokens, silence_s)


class _TenantLog:
    """A log, and what was seen last."""

    def __init__(self, tenant: str, log: BlockLog) -> None:
        self.log = log
        self._tenant = tenant
        self._seen: tuple[Generation | None, int] = (None, 0)

    def look(self, generation: Generation | None, clock: Clock) -> None:
        """Append what has changed since the last look."""
        changes = 0
        if generation is not None:
            changes = generation.loop.scheduler.tree.changes
        if self._seen == (generation, changes):
            return
        self._seen = (generation, changes)
        time_s = clock.now().timestamp()
        if generation is None:
            self.log.take((), 0, time_s)
            return
        owner, runs = generation.loop.cached_runs(self._tenant)
        self.log.take(runs, owner, time_s)


class _Reader:
    """What one reader has got."""

    def __init__(self, sequence: int, clock: Clock) -> None:
        self._next = sequence
        self._clock = clock
        self._told: Load | None = None
        self._told_s = -math.inf

    def read(self, log: BlockLog, state_now: Callable[[], EngineState]) -> Iterator[BlockReport]:
        """Yield the next batches, then the state if it has changed since the last report, or after some time.

        A slow reader takes the batches one by one; each has the state of its time.
        """
        for batch in log.since(self._next, self._clock.now().timestamp()):
            is_first = self._told is None
            state = state_now()
            self._tell(state)
            self._next = batch.sequence + 1
            yield BlockReport(batch.sequence, state, batch, is_full=is_first)
        state = state_now()
        if state.load != self._told or self._clock.monotonic_s() >= self._told_s + HEARTBEAT_S:
            self._tell(state)
            yield BlockReport(self._next - 1, state, is_full=True)

    def _tell(self, state: EngineState) -> None:
        self._told = state.load
        self._told_s = self._clock.monotonic_s()
