"""Converts waits, approvals, tainted spans, and approval rules to and from proto."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import approval_pb2, wait_pb2
from pagantic_common.codec.fields import EnumCodec, decode_optional, encode_optional
from pagantic_common.codec.messages import SAFETIES, timestamp_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.execution.wait import Decision, Resolution, Wait, WaitKind
from services.orchestrator.core.tools.policy import ToolAction, ToolPolicy, ToolRule, check_rules
from services.orchestrator.core.tools.taint import TaintedSpan

_ACTIONS = EnumCodec(approval_pb2.ToolAction, ToolAction, "TOOL_ACTION_", unknown=None)
_ON_CALLS = (Decision.APPROVED, Decision.REJECTED, Decision.EXPIRED)
_DECISIONS = EnumCodec(approval_pb2.ApprovalDecision, _ON_CALLS, "APPROVAL_DECISION_", unknown=None)
_KINDS = EnumCodec(wait_pb2.WaitKind, WaitKind, "WAIT_KIND_", unknown=None)


def policy_from_proto(rules: Sequence[approval_pb2.ToolRule]) -> ToolPolicy:
    """Decode the rules of a request. Raises InvalidRequest if a rule is empty."""
    policy = ToolPolicy(tuple(map(_rule_from_proto, rules)))
    check_rules(policy.rules)
    return policy


def action_to_proto(action: ToolAction) -> approval_pb2.ToolAction.ValueType:
    """Encode the action of a policy on calls of a tool."""
    return _ACTIONS.to_proto(action)


def decision_from_proto(value: int) -> Decision:
    """Decode a caller's decision. Raises InvalidRequest unless it is APPROVED or REJECTED."""
    decision = _DECISIONS.from_proto(value)
    if decision not in (Decision.APPROVED, Decision.REJECTED):
        raise InvalidRequest("decision must be APPROVAL_DECISION_APPROVED or APPROVAL_DECISION_REJECTED")
    return decision


def approval_to_proto(wait: Wait) -> approval_pb2.Approval:
    """Encode the approval of a call."""
    return approval_pb2.Approval(
        request_id=wait.request_id,
        tool_call_id=wait.id,
        tool_name=wait.name,
        arguments_json=wait.arguments_json,
        reason=wait.reason,
        spans=[
            approval_pb2.TaintedSpan(argument=span.argument, source=span.source, text=span.text) for span in wait.spans
        ],
        requested_at=timestamp_to_proto(wait.began_at),
        expires_at=timestamp_to_proto(wait.expires_at),
        resolution=encode_optional(wait.resolution, _decision_to_proto),
    )


def approval_from_proto(approval: approval_pb2.Approval) -> Wait:
    """Decode a stored approval."""
    return Wait(
        request_id=approval.request_id,
        id=approval.tool_call_id,
        kind=WaitKind.APPROVAL,
        began_at=approval.requested_at.ToDatetime(UTC),
        expires_at=approval.expires_at.ToDatetime(UTC),
        name=approval.tool_name,
        reason=approval.reason,
        arguments_json=approval.arguments_json,
        spans=tuple(TaintedSpan(span.argument, span.source, span.text) for span in approval.spans),
        resolution=decode_optional(approval, "resolution", _decision_of),
    )


def wait_to_proto(wait: Wait) -> wait_pb2.Wait:
    """Encode a wait of any kind, without the arguments and the decision of an approval."""
    is_approval = wait.kind is WaitKind.APPROVAL
    return wait_pb2.Wait(
        request_id=wait.request_id,
        wait_id=wait.id,
        kind=_KINDS.to_proto(wait.kind),
        name=wait.name,
        reason=wait.reason,
        schema_json=wait.schema_json,
        began_at=timestamp_to_proto(wait.began_at),
        expires_at=timestamp_to_proto(wait.expires_at),
        resolution=None if is_approval else encode_optional(wait.resolution, _resolution_to_proto),
    )


def wait_from_proto(wait: wait_pb2.Wait) -> Wait:
    """Decode a stored wait for a signal or a time."""
    return Wait(
        request_id=wait.request_id,
        id=wait.wait_id,
        kind=_KINDS.from_proto(wait.kind) or WaitKind.TIMER,
        began_at=wait.began_at.ToDatetime(UTC),
        expires_at=wait.expires_at.ToDatetime(UTC),
        name=wait.name,
        reason=wait.reason,
        schema_json=wait.schema_json,
        resolution=decode_optional(wait, "resolution", _resolution_of),
    )


def _rule_from_proto(rule: approval_pb2.ToolRule) -> ToolRule:
    action = _ACTIONS.from_proto(rule.action)
    if action is None:
        raise InvalidRequest("a rule of tool_rules has no action: use ALLOW, ASK or DENY")
    if rule.WhichOneof("subject") != "safety":
        return ToolRule(action, pattern=rule.tool)
    if rule.safety == message_pb2.TOOL_SAFETY_UNSPECIFIED or rule.safety not in message_pb2.ToolSafety.values():
        raise InvalidRequest(f"a rule of tool_rules names safety class {rule.safety}, which is not one")
    return ToolRule(action, safety=SAFETIES.from_proto(rule.safety))


def _decision_to_proto(resolution: Resolution) -> approval_pb2.ApprovalResolution:
    return approval_pb2.ApprovalResolution(
        decision=_DECISIONS.to_proto(resolution.decision),
        resolved_at=timestamp_to_proto(resolution.resolved_at),
        subject=resolution.subject,
        arguments_json=resolution.payload_json,
        reason=resolution.reason,
    )


def _decision_of(resolution: approval_pb2.ApprovalResolution) -> Resolution:
    return Resolution(
        decision=_DECISIONS.from_proto(resolution.decision) or Decision.EXPIRED,
        resolved_at=resolution.resolved_at.ToDatetime(UTC),
        subject=resolution.subject,
        payload_json=resolution.arguments_json,
        reason=resolution.reason,
    )


def _resolution_to_proto(resolution: Resolution) -> wait_pb2.WaitResolution:
    return wait_pb2.WaitResolution(
        resolved_at=timestamp_to_proto(resolution.resolved_at),
        expired=resolution.decision is Decision.EXPIRED,
        signal_id=resolution.signal_id,
        subject=resolution.subject,
        payload_json=resolution.payload_json,
    )


def _resolution_of(resolution: wait_pb2.WaitResolution) -> Resolution:
    return Resolution(
        decision=Decision.EXPIRED if resolution.expired else Decision.SIGNALLED,
        resolved_at=resolution.resolved_at.ToDatetime(UTC),
        subject=resolution.subject,
        payload_json=resolution.payload_json,
        signal_id=resolution.signal_id,
    )
