"""Shares services, journal, limits and session turns among executions, and limits the time of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Aborted, ErrorCode, Failure, failure_of
from pagantic_common.telemetry.scope import current_deadline
from services.orchestrator.app.services import Services
from services.orchestrator.app.storage import StorageQuota
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.ports.journal import Conversations, Journal

TURN_POLL_S = 0.05
TURN_LOOK_S = 1.0
MAX_WAITING_TURNS = 16  # maximum number of waiting turns per session; they count against the registry's limits


class ConcurrentTurns(StrEnum):
    """The policy for a turn that arrives while another turn of its session runs."""

    WAIT = "wait"
    ABORT = "abort"


class _Line:
    """The executions of this process that wait for a session's turn, in order of arrival."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class Turns:
    """The queues of this process for the turns of sessions. Between processes, the journal decides."""

    def __init__(self, journal: Conversations, policy: ConcurrentTurns) -> None:
        self._journal = journal
        self._is_waiting = policy is ConcurrentTurns.WAIT
        self._lines: dict[SessionKey, _Line] = {}

    def join(self, request: Request, *, is_limited: bool = True) -> bool:
        """Queue for the session's turn until `leave` is called. Returns True if a busy session must be refused.

        Raises Aborted if the queue is too long.
        """
        if not _is_turn(request):
            return False
        line = self._lines.setdefault(request.session_key, _Line())
        if is_limited and line.count > MAX_WAITING_TURNS:
            raise Aborted(
                f"{line.count} turns of session {request.session_id!r} wait already: send this one again later",
                retry_after_s=1.0,
            )
        line.count += 1
        return not self._is_waiting

    def leave(self, request: Request) -> None:
        """Leave the session's queue."""
        if _is_turn(request):
            line = self._lines[request.session_key]
            line.count -= 1
            if line.count == 0:
                del self._lines[request.session_key]

    @asynccontextmanager
    async def turn(self, request: Request, *, is_resumed: bool = False) -> AsyncIterator[None]:
        """Wait for the session's turn, in order of arrival. The turn is released when the execution ends.

        With `is_resumed`, an execution that still has the turn does not wait, because the queue waits for it.
        """
        key = request.session_key
        if not _is_turn(request) or (is_resumed and await self._journal.has_turn(key, request.request_id)):
            yield
            return
        async with self._lines[key].lock:
            if not await self._journal.take_turn(key, request.request_id):
                await self._wait_for_other(key, request.request_id)
            yield

    async def _wait_for_other(self, key: SessionKey, request_id: str) -> None:
        """Wait for a turn that another process holds. Polls, because an interrupted turn expires without a signal."""
        with self._journal.watching(key) as session:
            while not await self._journal.take_turn(key, request_id):
                await session.wait(TURN_POLL_S, limit_s=TURN_LOOK_S)


def _is_turn(request: Request) -> bool:
    return bool(request.session_id) and request.mode is Mode.CHAT


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on executions, and the prices of models."""

    max_running: int = 256
    max_running_of_tenant: int = 0
    max_running_of_subject: int = 0
    max_running_bytes: int = 16 * 1024 * 1024
    max_running_bytes_of_tenant: int = 0
    has_tenants: bool = False
    max_request_bytes: int = 1024 * 1024
    max_response_bytes: int = 3 * 1024 * 1024
    max_execution_s: float = 3600.0
    plan_bounds: PlanPolicy = field(default_factory=PlanPolicy)
    concurrent_turns: ConcurrentTurns = ConcurrentTurns.WAIT
    prices: Mapping[str, Prices] = field(default_factory=dict)
    max_stored_bytes_of_tenant: int | None = None
    max_session_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Environment:
    """The services, the journal and the limits that executions share."""

    services: Services
    journal: Journal
    clock: Clock
    limits: Limits
    turns: Turns
    storage: StorageQuota


def make_environment(services: Services, journal: Journal, clock: Clock, limits: Limits) -> Environment:
    """Return the environment of one orchestrator."""
    storage = StorageQuota(
        journal, max_tenant_bytes=limits.max_stored_bytes_of_tenant, max_session_bytes=limits.max_session_bytes
    )
    return Environment(services, journal, clock, limits, Turns(journal, limits.concurrent_turns), storage)


# Deadline tolerance: a caller uses its own clock, and its gRPC may have rounded up the deadline to three digits.
DEADLINE_SLACK_S = 0.05
DEADLINE_ROUNDING_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The remaining time, and the failure that is reported at the timeout."""

    left_s: float
    reason: str

    def after(self, spent_s: float) -> TimeLimits:
        """Return the limits that remain after the given time."""
        return replace(self, left_s=self.left_s - spent_s)

    @property
    def failure(self) -> Failure:
        """The failure of an execution that has exceeded its limit."""
        return failure_of(ErrorCode.CANCELLED_TIMEOUT, self.reason)


def time_limits(request: Request, max_execution_s: float) -> TimeLimits:
    """Return the shorter of the request's timeout and the service's maximum."""
    timeout_s = request.hints.timeout_s
    if timeout_s is not None and timeout_s <= max_execution_s:
        return TimeLimits(timeout_s, "the request's time is up")
    return TimeLimits(
        max_execution_s, f"the execution took the longest that one may, {max_execution_s:g} s (MAX_EXECUTION_S)"
    )


def caller_left(watched_s: float = 0.0) -> Failure:
    """Return the reason that a caller left after `watched_s` seconds: a passed deadline or a cancellation."""
    left_s = current_deadline().remaining_s(time.monotonic())
    if left_s is not None and left_s <= DEADLINE_SLACK_S + DEADLINE_ROUNDING_RATIO * (watched_s + left_s):
        return failure_of(ErrorCode.CANCELLED_TIMEOUT, "the caller's deadline passed")
    return failure_of(ErrorCode.CANCELLED_SIGNAL, "the caller cancelled or went away")
