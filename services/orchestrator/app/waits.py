"""Lets executions wait for the approval of tool calls, and lets callers decide on these calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import InvalidRequest, PreconditionFailed
from pagantic_common.domain.ids import require_id
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from services.orchestrator.core.model.keys import ExecutionKey
from services.orchestrator.core.tools.approval import MAX_REASON_CHARS, Approval, Decision, Resolution, reason_to_ask
from services.orchestrator.core.tools.taint import TaintedSpan
from services.orchestrator.ports.approvals import ApprovalStore
from services.orchestrator.ports.page import Page, page_limit

POLL_S = 2.0  # poll interval for decisions that another orchestrator makes without notifying this orchestrator
MAX_ARGUMENTS_BYTES = 256 * 1024
PARKED_WAIT_S = 7 * 86_400.0


class Approvals:
    """The calls that wait for a decision, across all orchestrators that share a journal.

    Args:
        wait_s: How long a call waits before it is denied, seconds.
        parked_wait_s: The same for a call of an execution that is parked meanwhile.
    """

    def __init__(
        self, store: ApprovalStore, clock: Clock, wait_s: float = 300.0, parked_wait_s: float = PARKED_WAIT_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._wait_s = wait_s
        self._parked_wait_s = parked_wait_s

    async def ask(
        self, key: ExecutionKey, call: ToolCall, spans: tuple[TaintedSpan, ...], left_s: float | None, *, may_park: bool
    ) -> tuple[Approval, bool]:
        """Return the approval of a call, and whether it is new. A call that already waits keeps its expiry time.

        `left_s` is the remaining time of the execution or step, or None if there is no limit. No decision is possible
        once that time has passed. The time of an execution that may be parked stands still meanwhile.
        """
        now = self._clock.now()
        wait_s = self._wait_s if left_s is None else min(self._wait_s, left_s)
        if may_park:
            wait_s = self._parked_wait_s
        approval = Approval(
            key.request_id,
            call.id,
            call.name,
            call.arguments_json,
            reason_to_ask(spans),
            requested_at=now,
            expires_at=now + timedelta(seconds=wait_s),
            spans=spans,
        )
        stored = await self._store.ask_approval(key, approval)
        return stored, stored is approval

    async def wait(self, key: ExecutionKey, approval: Approval) -> Approval:
        """Return an approval once it is decided or expired."""
        with self._store.watching(key) as execution:
            while True:
                stored = await self._store.get_approval(key, approval.tool_call_id)
                if not stored.is_for(approval):  # A decision about another call of this id does not count.
                    return approval.resolved(Resolution(Decision.EXPIRED, self._clock.now()))
                if stored.resolution is not None:
                    return stored
                left_s = (approval.expires_at - self._clock.now()).total_seconds()
                if left_s <= 0:
                    expired = Resolution(Decision.EXPIRED, approval.expires_at)
                    return await self._store.resolve_approval(key, approval.tool_call_id, expired)
                await execution.wait(POLL_S, left_s)

    async def resolve(
        self,
        key: ExecutionKey,
        tool_call_id: str,
        decision: Decision,
        *,
        subject: str = "",
        arguments_json: str = "",
        reason: str = "",
        check_changed: Callable[[str], Awaitable[str]],
        check_schema: Callable[[str, str], Awaitable[None]],
    ) -> Approval:
        """Decide on a call.

        `check_changed` returns the changed arguments as the guards leave them. Then `check_schema` checks these against
        the schema of the named tool.

        Raises NotFound if the call is not pending, PreconditionFailed if a different decision was made or the approval
        has expired, InvalidRequest if the arguments are not a JSON object, and the errors of both checks. After an
        error the call still waits.
        """
        require_id("request_id", key.request_id)
        require_id("tool_call_id", tool_call_id)
        _check_resolution(decision, arguments_json, reason)
        now = self._clock.now()
        pending_approval = await self._store.get_approval(key, tool_call_id)
        if pending_approval.has_expired(now):
            raise PreconditionFailed(f"call {tool_call_id!r} is no longer pending: the time for a decision is over")
        if arguments_json:
            arguments_json = await check_changed(arguments_json)
        if arguments_json and pending_approval.resolution is None:
            await check_schema(pending_approval.tool_name, arguments_json)
        resolution = Resolution(decision, now, subject, arguments_json, reason)
        approval = await self._store.resolve_approval(key, tool_call_id, resolution)
        if approval.resolution is None or not approval.resolution.agrees_with(resolution):
            raise PreconditionFailed(f"call {tool_call_id!r} is no longer pending: {_decision_of(approval)}")
        return approval

    async def list_open(self, tenant: str, request_id: str, page_size: int, page_token: str) -> Page[Approval]:
        """Return a tenant's pending approvals, oldest first. A non-empty `request_id` selects one execution."""
        if request_id:
            require_id("request_id", request_id)
        limit = page_limit(page_size)
        page = await self._store.list_approvals(tenant=tenant, limit=limit, after=page_token, request_id=request_id)
        now = self._clock.now()
        return replace(page, items=[approval for approval in page.items if not approval.has_expired(now)])


def _check_resolution(decision: Decision, arguments_json: str, reason: str) -> None:
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidRequest(f"reason has {len(reason)} characters: it may have {MAX_REASON_CHARS}")
    if not arguments_json:
        return
    if decision is not Decision.APPROVED:
        raise InvalidRequest("arguments_json is set, but a call that is rejected has no arguments: leave it empty")
    if len(arguments_json.encode(errors="replace")) > MAX_ARGUMENTS_BYTES:
        raise InvalidRequest(f"arguments_json has more than {MAX_ARGUMENTS_BYTES} bytes")
    try:
        arguments = parse_json(arguments_json, is_rewritable=True)
    except JsonTextError as error:
        raise InvalidRequest(f"arguments_json is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise InvalidRequest("arguments_json must be a JSON object")


def _decision_of(approval: Approval) -> str:
    if approval.resolution is None:
        return "it is not pending"
    return f"it is {approval.resolution.decision.lower()}"
