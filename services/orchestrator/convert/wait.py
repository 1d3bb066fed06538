"""Converts rules, approvals and tainted spans to and from proto."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import approval_pb2
from pagantic_common.codec.fields import EnumCodec, decode_optional, encode_optional
from pagantic_common.codec.messages import SAFETIES, timestamp_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.tools.approval import Approval, Decision, Resolution
from services.orchestrator.core.tools.policy import ToolAction, ToolPolicy, ToolRule, check_rules
from services.orchestrator.core.tools.taint import TaintedSpan

_ACTIONS = EnumCodec(approval_pb2.ToolAction, ToolAction, "TOOL_ACTION_", unknown=None)
_DECISIONS = EnumCodec(approval_pb2.ApprovalDecision, Decision, "APPROVAL_DECISION_", unknown=None)


def policy_from_proto(rules: Sequence[approval_pb2.ToolRule]) -> ToolPolicy:
    """Decode the rules of a request. Raises InvalidRequest if a rule is empty."""
    policy = ToolPolicy(tuple(map(_rule_from_proto, rules)))
    check_rules(policy.rules)
    return policy


def action_to_proto(action: ToolAction) -> approval_pb2.ToolAction.ValueType:
    """Encode the action that a policy takes on a tool's calls."""
    return _ACTIONS.to_proto(action)


def decision_from_proto(value: int) -> Decision:
    """Decode a caller's decision. Raises InvalidRequest unless it is APPROVED or REJECTED."""
    decision = _DECISIONS.from_proto(value)
    if decision not in (Decision.APPROVED, Decision.REJECTED):
        raise InvalidRequest("decision must be APPROVAL_DECISION_APPROVED or APPROVAL_DECISION_REJECTED")
    return decision


def approval_to_proto(approval: Approval) -> approval_pb2.Approval:
    """Encode an approval."""
    return approval_pb2.Approval(
        request_id=approval.request_id,
        tool_call_id=approval.tool_call_id,
        tool_name=approval.tool_name,
        arguments_json=approval.arguments_json,
        reason=approval.reason,
        spans=[
            approval_pb2.TaintedSpan(argument=span.argument, source=span.source, text=span.text)
            for span in approval.spans
        ],
        requested_at=timestamp_to_proto(approval.requested_at),
        expires_at=timestamp_to_proto(approval.expires_at),
        resolution=encode_optional(approval.resolution, _resolution_to_proto),
    )


def approval_from_proto(approval: approval_pb2.Approval) -> Approval:
    """Decode a stored approval."""
    return Approval(
        request_id=approval.request_id,
        tool_call_id=approval.tool_call_id,
        tool_name=approval.tool_name,
        arguments_json=approval.arguments_json,
        reason=approval.reason,
        requested_at=approval.requested_at.ToDatetime(UTC),
        expires_at=approval.expires_at.ToDatetime(UTC),
        spans=tuple(TaintedSpan(span.argument, span.source, span.text) for span in approval.spans),
        resolution=decode_optional(approval, "resolution", _resolution_from_proto),
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


def _resolution_to_proto(resolution: Resolution) -> approval_pb2.ApprovalResolution:
    return approval_pb2.ApprovalResolution(
        decision=_DECISIONS.to_proto(resolution.decision),
        resolved_at=timestamp_to_proto(resolution.resolved_at),
        subject=resolution.subject,
        arguments_json=resolution.arguments_json,
        reason=resolution.reason,
    )


def _resolution_from_proto(resolution: approval_pb2.ApprovalResolution) -> Resolution:
    return Resolution(
        decision=_DECISIONS.from_proto(resolution.decision) or Decision.EXPIRED,
        resolved_at=resolution.resolved_at.ToDatetime(UTC),
        subject=resolution.subject,
        arguments_json=resolution.arguments_json,
        reason=resolution.reason,
    )
