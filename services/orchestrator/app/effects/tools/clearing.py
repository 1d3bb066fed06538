"""Authorizes a tool call before it runs, by policies, by the origin of its arguments, and by an approval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCode, Failure, PermissionDenied, failure_of
from pagantic_common.domain.messages import ToolCall, ToolDefinition
from pagantic_common.telemetry.scope import current_deadline
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.core.execution import events
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.tools.approval import Approval, refusal_of
from services.orchestrator.core.tools.policy import NAMED_ONLY, ToolAction, ToolPolicies
from services.orchestrator.core.tools.taint import Provenance, TaintedSpan

MakeProvenance = Callable[[], Provenance]
_NOT_RECORDED = (
    "tool {!r} was not run: the record has no such call, and a replay makes no {} calls without replay.tools LIVE"
)


@dataclass(frozen=True, slots=True)
class Authorization:
    """A call with the approved arguments, or the reason that it may not run.

    `recorded` is the result of the call in a replay. `warnings` come from the guards.
    """

    call: ToolCall
    recorded: ToolCallRecord | None = None
    refusal: Failure | None = None
    warnings: tuple[ResponseWarning, ...] = ()

    def check(self) -> None:
        """Raise PermissionDenied if the call may not run."""
        if self.refusal is None:
            return
        text = self.refusal.message
        if self.refusal.code is ErrorCode.GUARD_BLOCKED:
            text = f"tool {self.call.name!r} was not run: {text}"
        raise PermissionDenied(failure=replace(self.refusal, message=text))


async def authorize_call(
    request: Request, call: ToolCall, tool: ToolDefinition, make_provenance: MakeProvenance, scope: RunScope
) -> Authorization:
    """Authorize a call, and wait for its approval if needed. A replay does not repeat a call with a recorded result."""
    if (recorded := scope.recorded_call(call)) is not None:
        scope.given_calls.add(recorded.id)
        return Authorization(call, replace(recorded, id=call.id))
    if scope.taken is not None and tool.safety in NAMED_ONLY and not scope.taken.makes_changes:
        return Authorization(call, refusal=_denied(_NOT_RECORDED.format(tool.name, tool.safety)))
    action = ToolPolicies(scope.services.tool_policy, request.tool_policy).action_for(tool)
    if action is ToolAction.DENY:
        return Authorization(call, refusal=_denied(f"tool {tool.name!r} was not run: the policy denies its calls"))
    spans: tuple[TaintedSpan, ...] = ()
    if tool.safety in NAMED_ONLY:
        # The comparison runs in a thread, because a long conversation would block the event loop.
        spans = await asyncio.to_thread(_find_spans, make_provenance, call, tool)
    if action is ToolAction.ALLOW and not spans:
        return Authorization(call)
    return _clearance_of(call, await _approval_of(request, call, spans, scope))


def _find_spans(make_provenance: MakeProvenance, call: ToolCall, tool: ToolDefinition) -> tuple[TaintedSpan, ...]:
    return make_provenance().find_spans(call.arguments_json, tool)


async def _approval_of(request: Request, call: ToolCall, spans: tuple[TaintedSpan, ...], scope: RunScope) -> Approval:
    approvals = scope.services.approvals
    left_s = current_deadline().remaining_s(time.monotonic())
    pending_approval, is_new = await approvals.ask(request.key, call, spans, left_s, may_park=scope.may_park)
    if is_new:
        requested = events.ApprovalRequested(pending_approval)
        await scope.recorder.emit(requested, is_durable=True, tool_call_id=call.id, caused_by=scope.cause)
    waiting = scope.waits.waiting(call.id, pending_approval.expires_at) if scope.may_park else nullcontext()
    with waiting:
        approval = await approvals.wait(request.key, pending_approval)
    await scope.recorder.emit(
        events.ApprovalResolved(approval),
        duration_s=approval.waited_s,
        tool_call_id=call.id,
        caused_by=scope.cause,
    )
    return approval


def _clearance_of(call: ToolCall, approval: Approval) -> Authorization:
    if refusal := refusal_of(approval):
        return Authorization(call, refusal=_denied(refusal))
    changed = approval.resolution.arguments_json if approval.resolution is not None else ""
    if not changed:
        return Authorization(call)
    return Authorization(replace(call, arguments_json=changed))


def _denied(message: str) -> Failure:
    return failure_of(ErrorCode.TOOL_DENIED, message)
