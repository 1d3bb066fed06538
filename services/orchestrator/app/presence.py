"""Sends heartbeats, detects dead orchestrators, takes over their executions, and wakes parked executions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Overloaded, PaganticError, PreconditionFailed, Unavailable
from pagantic_common.telemetry.logging import get_logger
from services.orchestrator.app.executions import Executions
from services.orchestrator.core.execution.events import count_idle_resumes
from services.orchestrator.core.leases import Leases
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.ports.journal import Journal, Pulse

log = get_logger(__name__)

BEAT_S = 1.0
LEASE_S = 10.0
AT_ONCE = 64
MAX_RESUMES = 3  # Limit on automatic resumes without progress: the execution probably crashes its orchestrator.


async def _at_once() -> None:
    """Return without waiting."""


class Presence:
    """Sends one owner's heartbeats, interrupts dead owners' executions, and continues unattended and due executions."""

    def __init__(
        self,
        executions: Executions,
        journal: Journal,
        clock: Clock,
        owner: str,
        *,
        resumes_plans: bool,
        wait_until_ready: Callable[[], Awaitable[object]] = _at_once,
        beat_s: float = BEAT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self._executions = executions
        self._journal = journal
        self._clock = clock
        self._leases = Leases(owner, lease_s, longest_gap_s=lease_s / 2)
        self._resumes_plans = resumes_plans
        self._is_draining = False
        self._wait_until_ready = wait_until_ready
        self._beat_s = beat_s
        self._lease_s = lease_s
        self._tasks: list[asyncio.Task[None]] = []
        self._resuming: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self._is_ready = False
        self._loss: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._beaten_s = -math.inf
        self._left_alone: set[ExecutionKey] = set()

    def start(self) -> None:
        """Start the heartbeats. Once the other services are ready, resume unattended interrupted executions."""
        self._tasks = [asyncio.create_task(self._live()), asyncio.create_task(self._wait())]

    @property
    def is_beating(self) -> bool:
        """Whether the journal stored a heartbeat recently, so that it accepts writes."""
        return self._clock.monotonic_s() - self._beaten_s < self._lease_s / 2

    async def wait_until_lost(self) -> str:
        """Wait until another process takes this owner's name, and return the journal's message.

        All work of this process must then stop.
        """
        return await asyncio.shield(self._loss)

    def begin_drain(self) -> None:
        """Stop resuming executions, but continue the heartbeats, because running executions are still alive."""
        self._is_draining = True
        self._executions.begin_drain()

    async def stop(self) -> None:
        """Stop the heartbeats and the resuming of executions."""
        tasks = [*self._tasks, *(task for task in (self._resuming, self._waking) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._resuming, self._waking = [], None, None

    async def _wait(self) -> None:
        try:
            await self._wait_until_ready()
        except TimeoutError:
            log.warning("not every service is ready: what was interrupted is resumed all the same")
        self._is_ready = True

    async def _live(self) -> None:
        while True:
            try:
                await self.look()
            except PaganticError as error:
                log.warning("the journal cannot be asked", reason=str(error))
            except Exception:
                log.exception("unexpected error")
            await self._clock.sleep(self._beat_s)

    async def look(self) -> None:
        """Send a heartbeat, stop executions that must be cancelled, and interrupt the executions of dead owners."""
        pulse = await self._beat()
        for key in pulse.to_cancel:
            await self._executions.stop(key)
        registry = self._executions.registry
        ended = registry.unrecorded
        if ended:
            await self._journal.release(ended)
            registry.mark_recorded(ended)
        for owner, beat in self._leases.observe(pulse.beats, self._clock.monotonic_s()).items():
            if await self._journal.interrupt(owner, beat):
                log.warning("an orchestrator is dead: what it ran is interrupted", owner=owner)
        if self._is_ready and not self._is_draining:
            self._begin_work()

    def _begin_work(self) -> None:
        """Resume and wake executions in separate asyncio tasks, because heartbeats must not wait for them."""
        if self._resuming is None or self._resuming.done():
            self._resuming = asyncio.create_task(self._resume_unattended())
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake_due())

    async def _beat(self) -> Pulse:
        try:
            pulse = await self._journal.beat()
        except PreconditionFailed as error:
            if not self._loss.done():
                self._loss.set_result(str(error))
            raise
        self._beaten_s = self._clock.monotonic_s()
        return pulse

    async def _wake_due(self) -> None:
        """Wake the parked executions that are due, as far as capacity permits. The next heartbeat wakes the rest."""
        refused = set[str]()
        try:
            while self._executions.registry.has_room_for_others:
                if not (due := await self._journal.due(AT_ONCE, without=refused)):
                    return
                woken = await asyncio.gather(*map(self._executions.wake, due))
                refused |= {key.tenant for key, is_woken in zip(due, woken, strict=True) if not is_woken}
        except Exception:
            log.exception("parked executions cannot be woken")

    async def _resume_unattended(self) -> None:
        try:
            keys = await self._journal.interrupted(with_plans=self._resumes_plans)
            self._left_alone &= set(keys)
            for key in keys:
                if key not in self._left_alone and self._executions.registry.has_room_for_others:
                    await self._resume(key)
        except (Overloaded, Unavailable) as error:  # The next heartbeat retries.
            log.warning("what was interrupted cannot be resumed now", reason=str(error))

    async def _resume(self, key: ExecutionKey) -> None:
        try:
            events = await self._journal.timeline(key, await self._journal.after_sequence(key))
            if count_idle_resumes(events) >= MAX_RESUMES:
                self._left_alone.add(key)
                log.warning(
                    "an execution was interrupted too often to be resumed unasked",
                    request_id=key.request_id,
                    tenant=key.tenant,
                )
            elif (await self._journal.get(key)).is_interrupted:  # Another orchestrator may have been faster.
                await self._executions.resume(key)
                log.info("an execution is resumed", request_id=key.request_id, tenant=key.tenant)
        except (Overloaded, Unavailable) as error:
            if error.code is not ErrorCode.QUOTA_CONCURRENCY:  # Another tenant may have capacity left.
                raise
        except Exception:
            self._left_alone.add(key)
            log.exception("an execution cannot be resumed", request_id=key.request_id, tenant=key.tenant)
