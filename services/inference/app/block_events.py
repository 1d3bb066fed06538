"""Reports the load, and each change of a tenant's cached blocks, to callers that index the cache."""

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
    """The load of the models.

    Attributes:
        load: The sum of the loads of all models.
        idle_tokens: The number of KV cache cells that are freed on demand for other requests.
        silence_s: The age of the oldest step, or None while nothing is decoded.
    """

    load: Load
    idle_tokens: int
    silence_s: float | None


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A batch of changes and the state of the engine, or only the state.

    Attributes:
        sequence: The number of the batch, or the number of the last batch if the report has no batch.
        is_full: Whether to include slowly changing values.
    """

    sequence: int
    state: EngineState
    batch: Batch | None = None
    is_full: bool = False


class BlockEvents:
    """Serves the events of this replica to all readers, which count as watchers of the replica.

    There is no queue per reader. A reader follows the history of its tenant, and gets a snapshot if it falls behind.
    """

    def __init__(self, models: Models, watch: ReplicaWatch, clock: Clock, *, max_history: int = MAX_HISTORY) -> None:
        self._models = models
        self._watch = watch
        self._clock = clock
        self._max_history = max_history
        self._logs: OrderedDict[str, _TenantLog] = OrderedDict()

    async def reports(self, sequence: int) -> AsyncGenerator[BlockReport, None]:
        """Yield the changes of the current tenant's blocks in the default model, starting at a sequence number.

        If the number is outside the history, such as 0, the changes begin with a snapshot. Raises Overloaded
        (INFERENCE_OVERLOADED) if there are already MAX_WATCHERS watchers.
        """
        tenant = current_principal().tenant
        reader = _Reader(sequence, self._clock)
        async with aclosing(self._watch.looks(LOOK_S)) as looks:
            async for _ in looks:
                log = self._log_of(tenant)
                for report in reader.read(log, self._state):
                    yield report

    def _log_of(self, tenant: str) -> BlockLog:
        """Return a tenant's log after updating it. Evicts the least recently read log beyond MAX_LOGS."""
        if tenant not in self._logs:
            # The time in milliseconds exceeds all numbers of earlier logs, even of logs before a restart.
            log = BlockLog(math.ceil(self._clock.now().timestamp() * 1000), self._max_history)
            self._logs[tenant] = _TenantLog(tenant, log)
        self._logs.move_to_end(tenant)
        if len(self._logs) > MAX_LOGS:
            self._logs.popitem(last=False)
        tenant_log = self._logs[tenant]
        tenant_log.update(self._models.default_generation, self._clock)
        return tenant_log.log

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
    """The log of one tenant, with the generation and its change counter at the last update."""

    def __init__(self, tenant: str, log: BlockLog) -> None:
        self.log = log
        self._tenant = tenant
        self._seen: tuple[Generation | None, int] = (None, 0)

    def update(self, generation: Generation | None, clock: Clock) -> None:
        """Append the changes since the last update."""
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
    """The position of a reader, and the load last reported to it."""

    def __init__(self, sequence: int, clock: Clock) -> None:
        self._next = sequence
        self._clock = clock
        self._reported: Load | None = None
        self._reported_s = -math.inf

    def read(self, log: BlockLog, state_now: Callable[[], EngineState]) -> Iterator[BlockReport]:
        """Yield the next batches, then the state if it has changed since the last report or a heartbeat is due.

        A slow reader takes one batch after another. Each batch carries the state at the time of reading.
        """
        for batch in log.since(self._next, self._clock.now().timestamp()):
            is_first = self._reported is None
            state = state_now()
            self._note(state)
            self._next = batch.sequence + 1
            yield BlockReport(batch.sequence, state, batch, is_full=is_first)
        state = state_now()
        if state.load != self._reported or self._clock.monotonic_s() >= self._reported_s + HEARTBEAT_S:
            self._note(state)
            yield BlockReport(self._next - 1, state, is_full=True)

    def _note(self, state: EngineState) -> None:
        self._reported = state.load
        self._reported_s = self._clock.monotonic_s()
