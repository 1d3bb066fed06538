"""Carries out the waits of an execution, each between its start and end events."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import datetime

from pagantic_common.telemetry.scope import current_deadline
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.wait import Signal, Wait, WaitKind
from services.orchestrator.core.model.keys import ExecutionKey


def wait_expiry(scope: RunScope) -> datetime:
    """Return the time at which a wait that begins now ends by itself, unless it sets its own time."""
    left_s = current_deadline().remaining_s(time.monotonic())
    return scope.services.waits.expiry(left_s, may_park=scope.may_park)


async def ended_wait(key: ExecutionKey, wait: Wait, scope: RunScope) -> Wait:
    """Begin a wait, or continue the wait that began before an interruption, and return it once it has ended."""
    is_approval = wait.kind is WaitKind.APPROVAL
    call_id = wait.id if is_approval else ""

    async def report_dropped(signal: Signal, reason: str) -> None:
        dropped = events.SignalDropped(signal.name, signal.id, reason)
        await scope.recorder.emit(dropped, is_durable=True, caused_by=scope.cause)

    begun, is_new = await scope.services.waits.begin(key, wait)
    if is_new:
        began = events.ApprovalRequested(begun) if is_approval else events.WaitBegan(begun)
        await scope.recorder.emit(began, is_durable=True, tool_call_id=call_id, caused_by=scope.cause)
    # An execution whose wait can end at once is not parked.
    ended = await scope.services.waits.resolved(key, begun, report_dropped)
    if ended is None:
        waiting = scope.branches.waiting(wait.id, begun.expires_at) if scope.may_park else nullcontext()
        with waiting:
            ended = await scope.services.waits.until_resolved(key, begun, report_dropped)
    resolved = events.ApprovalResolved(ended) if is_approval else events.WaitEnded(ended.without_payload())
    await scope.recorder.emit(resolved, duration_s=ended.waited_s, tool_call_id=call_id, caused_by=scope.cause)
    return ended
