"""The services, the journal and the limits that all executions share, and the time limits of one execution."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.telemetry.scope import current_deadline
from services.orchestrator.app.running.turns import ConcurrentTurns, Turns
from services.orchestrator.app.services import Services
from services.orchestrator.app.storage import StorageQuota
from services.orchestrator.core.cost import Prices
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.journal import Journal


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of executions, and the prices of models."""

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


# Tolerance for deadlines: a caller uses its own clock, and its gRPC may have rounded up the deadline to three digits.
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
