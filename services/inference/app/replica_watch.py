"""Reports the load and cache of running models to callers that choose among replicas, and detects stuck models."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Overloaded
from pagantic_common.telemetry.logging import get_logger
from services.inference.app.generation import Generation
from services.inference.app.models import Models
from services.inference.app.workload import Load

MAX_WATCHERS = 64
MAX_KEYS = 16_384
DEFAULT_INTERVAL_S = 0.25
MIN_INTERVAL_S = 0.05
MAX_INTERVAL_S = 60.0
RETRY_AFTER_S = 5.0
CHECK_INTERVAL_S = 1.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """The current load, and the keys that entered or left the cache since the previous report."""

    load: Load
    added: frozenset[int]
    removed: frozenset[int]


class ReplicaWatch:
    """Serves all watchers of this replica. They share each reading of the cache."""

    def __init__(self, models: Models, clock: Clock) -> None:
        self._models = models
        self._clock = clock
        self._watchers = 0
        self._keys: frozenset[int] = frozenset()
        self._looked_s = -math.inf
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End all reports, so that a draining server need not wait for them."""
        self._stopped.set()

    async def reports(self, interval_s: float) -> AsyncGenerator[Report, None]:
        """Yield a report at once and then at each interval.

        Raises Overloaded (INFERENCE_OVERLOADED) if this replica already has MAX_WATCHERS watchers.
        """
        reported: frozenset[int] = frozenset()
        async with aclosing(self.looks(interval_s)) as looks:
            async for _ in looks:
                keys = self._current_keys()
                yield Report(self._models.load(), keys - reported, reported - keys)
                reported = keys

    async def looks(self, interval_s: float) -> AsyncGenerator[None, None]:
        """Yield at once and then at each interval, until `stop`. The reader counts as a watcher.

        Raises Overloaded (INFERENCE_OVERLOADED) if there are already MAX_WATCHERS watchers.
        """
        if self._watchers >= MAX_WATCHERS:
            raise Overloaded(
                f"{self._watchers} callers watch this replica already: watch less often, or from fewer processes",
                code=ErrorCode.INFERENCE_OVERLOADED,
                retry_after_s=RETRY_AFTER_S,
            )
        self._watchers += 1
        try:
            while not self._stopped.is_set():
                yield
                await self._wait(interval_s)
        finally:
            self._watchers -= 1

    async def _wait(self, interval_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await self._stopped.wait()

    def _current_keys(self) -> frozenset[int]:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= MIN_INTERVAL_S:
            self._looked_s = now_s
            workloads = [served.workload for served in self._models.loaded]
            key_sets = [workload.cached_keys() for workload in workloads if isinstance(workload, Generation)]
            self._keys = frozenset(list(frozenset().union(*key_sets))[:MAX_KEYS])
        return self._keys


async def wait_until_broken(
    models: Models, *, step_timeout_s: float, clock: Clock, interval_s: float = CHECK_INTERVAL_S
) -> str:
    """Wait until a model is broken, and return the reason: a step beyond `step_timeout_s`, or a dead thread.

    The model's requests then have failed with INFERENCE_MODEL_UNAVAILABLE, and the model rejects new requests.
    """
    while True:
        for served in models.loaded:
            workload = served.workload
            if workload.stuck_for_s(clock.monotonic_s()) > step_timeout_s:
                workload.give_up(f"a step takes longer than {step_timeout_s:g} s")
            if workload.broken_because:
                return f"model {served.info.name!r}: {workload.broken_because}"
        await asyncio.sleep(interval_s)
