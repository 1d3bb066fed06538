"""Waits of an execution for the approval of a tool call, for a signal, for a time, or for an answer of the user."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from pagantic_common.domain.text.json_text import parse_json
from pagantic_common.grammar.arguments import name_of
from pagantic_common.grammar.schema_problems import describe_problem
from pagantic_common.grammar.schema_validator import build_validator
from services.orchestrator.core.model.plan import MAX_STEP_TIMEOUT_S
from services.orchestrator.core.tools.taint import TaintedSpan

MAX_REASON_CHARS = 500
MAX_KEPT_SIGNALS = 64
MAX_SIGNALS = 10_000  # maximum number of signals over an execution's whole life
MAX_SIGNAL_BYTES = 64 * 1024
SIGNAL_NAME = re.compile(r"[A-Za-z0-9._:/#-]{1,128}")
TIMED_OUT_JSON = '{"timed_out": true}'  # payload in place of a signal that did not arrive in time


class WaitKind(StrEnum):
    """The kind of a wait."""

    APPROVAL = "APPROVAL"
    SIGNAL = "SIGNAL"
    TIMER = "TIMER"
    QUESTION = "QUESTION"


class Decision(StrEnum):
    """The way in which a wait ended. EXPIRED means that its time came first."""

    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    SIGNALLED = "SIGNALLED"
    EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The end of a wait.

    `subject` is the name of the deciding or signalling caller, which may be empty. `payload_json` is the payload of a
    signal; for an approved call it replaces the arguments unless it is empty. `reason` is shown to the model.
    """

    decision: Decision
    resolved_at: datetime
    subject: str = ""
    payload_json: str = ""
    reason: str = ""
    signal_id: str = ""

    def agrees_with(self, other: Resolution) -> bool:
        """Return whether two decisions are equal."""
        return (self.decision, self.payload_json) == (other.decision, other.payload_json)


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of an execution. `resolution` is None while the wait is open.

    Attributes:
        id: Unique within the execution: the path of the step, the id of the tool call, or both for a step's QUESTION.
        name: The tool of an APPROVAL; the name of the signal that ends a SIGNAL or a QUESTION; empty for a TIMER.
        reason: The question of a QUESTION, otherwise the reason for the wait, which may be empty.
        arguments_json: The arguments of the call that needs an approval.
        schema_json: The JSON Schema of the signal's payload; empty permits any JSON value.
        spans: The tainted parts of the arguments.
    """

    request_id: str
    id: str
    kind: WaitKind
    began_at: datetime
    expires_at: datetime
    name: str = ""
    reason: str = ""
    arguments_json: str = ""
    schema_json: str = ""
    spans: tuple[TaintedSpan, ...] = ()
    resolution: Resolution | None = None

    def is_for(self, other: Wait) -> bool:
        """Return whether both are the same wait.

        A decision on a call is valid only for the same arguments, and an answer only for the same question.
        """
        return self._identity == other._identity

    @property
    def _identity(self) -> tuple[str, ...]:
        question = self.reason if self.kind is WaitKind.QUESTION else ""
        return (self.id, self.kind, self.name, self.arguments_json, self.schema_json, question)

    @property
    def takes_signals(self) -> bool:
        """Whether a signal of the wait's name ends it."""
        return self.kind in (WaitKind.SIGNAL, WaitKind.QUESTION)

    def has_expired(self, now: datetime) -> bool:
        """Return whether the wait is still open although its time has come."""
        return self.resolution is None and now >= self.expires_at

    @property
    def waited_s(self) -> float | None:
        """The duration of the wait, or None while it is open."""
        if self.resolution is None:
            return None
        waited_s = (self.resolution.resolved_at - self.began_at).total_seconds()
        return min(max(0.0, waited_s), MAX_STEP_TIMEOUT_S)  # clocks differ, and a signal may be taken late

    def resolved(self, resolution: Resolution) -> Wait:
        """Return the wait with its end set."""
        return replace(self, resolution=resolution)

    def without_payload(self) -> Wait:
        """Return the wait without the payload of its signal, for timelines."""
        if self.resolution is None:
            return self
        return replace(self, resolution=replace(self.resolution, payload_json=""))


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that a caller sent to an execution.

    `digest` is the hash of its name and of its payload before the guards changed it. `subject` is empty if the caller
    has no name.
    """

    id: str
    name: str
    payload_json: str
    digest: bytes
    subject: str = ""


def digest_of(name: str, payload_json: str) -> bytes:
    """Return the SHA-256 of a signal's name and payload."""
    return hashlib.sha256(f"{name}\n{payload_json}".encode()).digest()


def violation_of(schema_json: str, payload_json: str) -> str:
    """Return the first violation of a payload against a valid JSON Schema, or an empty string.

    An empty schema permits every payload.
    """
    if not schema_json:
        return ""
    validator = build_validator(parse_json(schema_json), mask="the value")
    try:
        error = next(iter(validator.iter_errors(parse_json(payload_json, is_rewritable=True))), None)
    except ValueError:  # The payload exceeds the validator's nesting limit, or has a lone surrogate.
        return "the payload is nested too deeply or is not valid Unicode"
    if error is None:
        return ""
    return f"{name_of(error.instance_path) or 'the payload'}: {describe_problem(error)}"[:MAX_REASON_CHARS]


def reason_to_ask(spans: Sequence[TaintedSpan]) -> str:
    """Return the reason that a call needs an approval."""
    if not spans:
        return "the policy asks before each call of this tool"
    named = ", ".join(sorted({f"{span.argument!r} from {span.source}" for span in spans}))
    return f"arguments contain text from a tool result or a document: {named}"[:MAX_REASON_CHARS]


def refusal_of(approval: Wait) -> str:
    """Return the message to the model about a refused call; empty if the call was not refused."""
    resolution = approval.resolution
    if resolution is None or resolution.decision is Decision.APPROVED:
        return ""
    if resolution.decision is Decision.EXPIRED:
        return f"tool {approval.name!r} was not run: nobody approved the call in time"
    words = f": {resolution.reason}" if resolution.reason else ""
    return f"tool {approval.name!r} was not run: the call was rejected{words}"
