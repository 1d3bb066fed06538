"""The time limits of an execution."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.telemetry.scope import current_deadline
from services.orchestrator.core.model.request import Request

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
