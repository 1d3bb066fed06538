"""Authorizes a tool call before it runs, by policies, by the origin of its arguments, and by an approval."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCode, Failure, InvalidRequest, PermissionDenied, failure_of
from pagantic_common.domain.messages import ToolCall, ToolDefinition
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.waiting import ended_wait, wait_expiry
from services.orchestrator.core.execution.wait import SIGNAL_NAME, Decision, Wait, WaitKind, reason_to_ask, refusal_of
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.tools.asking import NAME as ASK_USER
from services.orchestrator.core.tools.asking import answer_text, read_question
from services.orchestrator.core.tools.policy import NAMED_ONLY, ToolAction, ToolPolicies
from services.orchestrator.core.tools.taint import Provenance, TaintedSpan

MakeProvenance = Callable[[], Provenance]
_NOT_RECORDED = (
    "tool {!r} was not run: the record has no such call, and a replay makes no {} calls without replay.tools LIVE"
)


@dataclass(frozen=True, slots=True)
class Authorization:
    """A call with the approved arguments, or the reason for its refusal.

    `recorded` is the call's result in a replay. `warnings` are the guards' warnings.
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
    if tool.name == ASK_USER:
        return await _answered_by_user(request, call, scope)
    spans: tuple[TaintedSpan, ...] = ()
    if tool.safety in NAMED_ONLY:
        # The comparison runs in a thread, because a long conversation would block the event loop.
        spans = await asyncio.to_thread(_find_spans, make_provenance, call, tool)
    if action is ToolAction.ALLOW and not spans:
        return Authorization(call)
    return _clearance_of(call, await _approval_of(request, call, spans, scope))


def _find_spans(make_provenance: MakeProvenance, call: ToolCall, tool: ToolDefinition) -> tuple[TaintedSpan, ...]:
    return make_provenance().find_spans(call.arguments_json, tool)


async def _approval_of(request: Request, call: ToolCall, spans: tuple[TaintedSpan, ...], scope: RunScope) -> Wait:
    approval = Wait(
        request.request_id,
        call.id,
        WaitKind.APPROVAL,
        began_at=scope.clock.now(),
        expires_at=wait_expiry(scope),
        name=call.name,
        reason=reason_to_ask(spans),
        arguments_json=call.arguments_json,
        spans=spans,
    )
    return await ended_wait(request.key, approval, scope)


async def _answered_by_user(request: Request, call: ToolCall, scope: RunScope) -> Authorization:
    """Ask the user, and return the call with the answer as its result."""
    try:
        asked = read_question(call.arguments_json)
    except InvalidRequest as error:
        return Authorization(call, refusal=error.failure)
    wait_id = f"{scope.path}/{call.id}" if scope.path else call.id
    name = wait_id if SIGNAL_NAME.fullmatch(wait_id) else hashlib.sha256(wait_id.encode()).hexdigest()
    question = Wait(
        request.request_id,
        wait_id,
        WaitKind.QUESTION,
        began_at=scope.clock.now(),
        expires_at=wait_expiry(scope),
        name=name,
        reason=asked.question,
        schema_json=asked.schema_json,
    )
    ended = await ended_wait(request.key, question, scope)
    if ended.resolution is None or ended.resolution.decision is Decision.EXPIRED:
        return Authorization(call, refusal=failure_of(ErrorCode.TOOL_TIMEOUT, "the user did not answer in time"))
    answer = answer_text(ended.resolution.payload_json)
    return Authorization(call, ToolCallRecord(call.id, call.name, call.arguments_json, answer, False, None, 0.0))


def _clearance_of(call: ToolCall, approval: Wait) -> Authorization:
    if refusal := refusal_of(approval):
        return Authorization(call, refusal=_denied(refusal))
    changed = approval.resolution.payload_json if approval.resolution is not None else ""
    if not changed:
        return Authorization(call)
    return Authorization(replace(call, arguments_json=changed))


def _denied(message: str) -> Failure:
    return failure_of(ErrorCode.TOOL_DENIED, message)
