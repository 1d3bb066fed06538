"""Approvals of tool calls that wait for a person's decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from services.orchestrator.core.tools.taint import TaintedSpan

MAX_REASON_CHARS = 500


class Decision(StrEnum):
    """The kind of decision about a call. EXPIRED means that nobody decided in time."""

    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The decision about a call.

    `subject` is the caller who decided, or an empty string if the caller has no name. `arguments_json` replaces the
    arguments of an approved call unless it is empty. `reason` is shown to the model.
    """

    decision: Decision
    resolved_at: datetime
    subject: str = ""
    arguments_json: str = ""
    reason: str = ""

    def agrees_with(self, other: Resolution) -> bool:
        """Return whether two decisions are the same."""
        return (self.decision, self.arguments_json) == (other.decision, other.arguments_json)


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that needs a decision. `resolution` is None until the decision.

    `reason` is the reason that the call needs a decision.
    """

    request_id: str
    tool_call_id: str
    tool_name: str
    arguments_json: str
    reason: str
    requested_at: datetime
    expires_at: datetime
    spans: tuple[TaintedSpan, ...] = ()
    resolution: Resolution | None = None

    def is_for(self, other: Approval) -> bool:
        """Return whether both approvals are about the same call. A decision is valid only for the same arguments."""
        return (self.tool_call_id, self.tool_name, self.arguments_json) == (
            other.tool_call_id,
            other.tool_name,
            other.arguments_json,
        )

    def has_expired(self, now: datetime) -> bool:
        """Return whether the time for a decision has run out without a decision."""
        return self.resolution is None and now >= self.expires_at

    @property
    def waited_s(self) -> float | None:
        """The time that the call waited, or None while it waits."""
        if self.resolution is None:
            return None
        return (self.resolution.resolved_at - self.requested_at).total_seconds()

    def resolved(self, resolution: Resolution) -> Approval:
        """Return the approval with a decision set."""
        return replace(self, resolution=resolution)


def reason_to_ask(spans: Sequence[TaintedSpan]) -> str:
    """Return the reason that a call needs an approval."""
    if not spans:
        return "the policy asks before each call of this tool"
    named = ", ".join(sorted({f"{span.argument!r} from {span.source}" for span in spans}))
    return f"arguments contain text from a tool result or a document: {named}"[:MAX_REASON_CHARS]


def refusal_of(approval: Approval) -> str:
    """Return the message to the model about a refused call, or an empty string if the call was not refused."""
    resolution = approval.resolution
    if resolution is None or resolution.decision is Decision.APPROVED:
        return ""
    if resolution.decision is Decision.EXPIRED:
        return f"tool {approval.tool_name!r} was not run: nobody approved the call in time"
    words = f": {resolution.reason}" if resolution.reason else ""
    return f"tool {approval.tool_name!r} was not run: the call was rejected{words}"
