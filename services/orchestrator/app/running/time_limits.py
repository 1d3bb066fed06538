"""Time limits of an execution."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.telemetry.scope import current_deadline
from services.orchestrator.core.model.request import Request

# A caller ends its call by its own clock, and its gRPC may have rounded the deadline up to three digits.
DEADLINE_SLACK_S = 0.05
DEADLINE_ROUNDING_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Remaining time, and the failure reported at the timeout."""

    left_s: float
    reason: str

    def after(self, spent_s: float) -> TimeLimits:
        """Return the limits after some time was spent."""
        return replace(self, left_s=self.left_s - spent_s)

    @property
    def failure(self) -> Failure:
        """Why an execution ends that took too long."""
        return failure_of(ErrorCode.CANCELLED_TIMEOUT, self.reason)


def time_limits(request: Request, max_execution_s: float) -> TimeLimits:
    """Return the nearer of the request's own timeout and the service's."""
    timeout_s = request.hints.timeout_s
    if timeout_s is not None and timeout_s <= max_execution_s:
        return TimeLimits(timeout_s, "the request's time is up")
    return TimeLimits(
        max_execution_s, f"the execution took the longest that one may, {max_execution_s:g} s (MAX_EXECUTION_S)"
    )


def caller_left(watched_s: float = 0.0) -> Failure:
    """Return why a caller left that watched for `watched_s` seconds: its deadline passed, or it went away."""
    left_s = current_deadline().remaining_s(time.monotonic())
    if left_s is not None and left_s <= DEADLINE_SLACK_S + DEADLINE_ROUNDING_RATIO * (watched_s + left_s):
        return failure_of(ErrorCode.CANCELLED_TIMEOUT, "the caller's deadline passed")
    return failure_of(ErrorCode.CANCELLED_SIGNAL, "the caller cancelled or went away")
