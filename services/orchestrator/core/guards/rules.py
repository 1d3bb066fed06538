"""Defines a deployment's guards, in order, and their reports to callers. Reports never contain the checked text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.guards.plugin import GuardStage, GuardTraits
from services.orchestrator.core.model.response_warning import ResponseWarning

MAX_KINDS = 8  # maximum number of kinds in an event
_PLACES: Mapping[GuardStage, str] = {
    GuardStage.INPUT: "input",
    GuardStage.TOOL_ARGUMENTS: "arguments of a tool call",
    GuardStage.TOOL_RESULTS: "result of a tool",
    GuardStage.OUTPUT: "output",
}


class GuardAction(StrEnum):
    """The action on text that has findings."""

    BLOCK = "block"
    REDACT = "redact"


class OnFailure(StrEnum):
    """The action on text if the guard that checks it fails or times out."""

    CLOSED = "closed"
    OPEN = "open"


class GuardOutcome(StrEnum):
    """The outcome of a guard that blocked or redacted text, or that could not check it."""

    BLOCKED = "BLOCKED"
    REDACTED = "REDACTED"
    FAILED_CLOSED = "FAILED_CLOSED"
    FAILED_OPEN = "FAILED_OPEN"


@dataclass(frozen=True, slots=True)
class GuardRule:
    """A guard with its stages and its tenants. An empty set of tenants means all tenants.

    Attributes:
        name: The name of the guard in events and errors.
        plugin: The name of the plug-in's entry point.
        timeout_s: The time limit for checking a text, or a part of a streamed text.
        options_json: The options of the plug-in, a JSON object.
    """

    name: str
    plugin: str
    stages: frozenset[GuardStage]
    action: GuardAction = GuardAction.BLOCK
    on_failure: OnFailure = OnFailure.CLOSED
    tenants: frozenset[str] = frozenset()
    timeout_s: float = 5.0
    options_json: str = "{}"
    traits: GuardTraits = field(default_factory=GuardTraits)

    def is_for(self, stage: GuardStage, tenant: str) -> bool:
        """Return whether the rule applies to the texts of a tenant at a stage."""
        return stage in self.stages and (not self.tenants or tenant in self.tenants)


def guards_request(rules: Sequence[GuardRule], tenant: str) -> bool:
    """Return whether any rule applies to a tenant's requests, or to the tool results in them."""
    return any(rules_for(rules, stage, tenant) for stage in (GuardStage.INPUT, GuardStage.TOOL_RESULTS))


def rules_for(rules: Sequence[GuardRule], stage: GuardStage, tenant: str) -> tuple[GuardRule, ...]:
    """Return the rules for a tenant's texts at a stage, in order."""
    return tuple(rule for rule in rules if rule.is_for(stage, tenant))


@dataclass(frozen=True, slots=True)
class GuardReport:
    """A guard's action on texts of one stage. `kinds` lists each kind of finding once."""

    guard: str
    stage: GuardStage
    outcome: GuardOutcome
    findings: int = 0
    kinds: tuple[str, ...] = ()

    @property
    def is_blocked(self) -> bool:
        """Whether the text is blocked."""
        return self.outcome in (GuardOutcome.BLOCKED, GuardOutcome.FAILED_CLOSED)

    @property
    def message(self) -> str:
        """The message that describes the outcome to the caller."""
        place = f"the {_PLACES[self.stage]}"
        match self.outcome:
            case GuardOutcome.BLOCKED:
                return f"guard {self.guard!r} blocks {place}"
            case GuardOutcome.FAILED_CLOSED:
                return f"guard {self.guard!r} could not check {place}, and lets nothing pass unchecked"
            case GuardOutcome.FAILED_OPEN:
                return f"guard {self.guard!r} could not check {place}, which passed unchecked"
            case GuardOutcome.REDACTED:
                return f"guard {self.guard!r} redacted {place}: {_count(self.findings)}"

    @property
    def failure(self) -> Failure:
        """The failure for a blocked text. It is retryable if the guard failed."""
        failed = failure_of(
            ErrorCode.GUARD_BLOCKED,
            self.message,
            details={"guard": self.guard, "stage": self.stage.value, "outcome": self.outcome.value.lower()},
        )
        return replace(failed, retryable=self.outcome is GuardOutcome.FAILED_CLOSED)

    @property
    def warning(self) -> ResponseWarning:
        """The warning in a response whose texts passed despite the guard's findings or failure."""
        code = "guard_redacted" if self.outcome is GuardOutcome.REDACTED else "guard_failed"
        return ResponseWarning(code, self.message)


@dataclass(slots=True)
class Tally:
    """The findings of one rule so far, in texts of one stage."""

    rule: GuardRule
    stage: GuardStage
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, kinds: Iterable[str]) -> None:
        """Count findings by their kinds."""
        self.kinds.update(kinds)

    def report(self, outcome: GuardOutcome) -> GuardReport:
        """Return the guard's report with the findings so far."""
        kinds = tuple(sorted(self.kinds))[:MAX_KINDS]
        return GuardReport(self.rule.name, self.stage, outcome, self.kinds.total(), kinds)


def _count(findings: int) -> str:
    return "1 finding" if findings == 1 else f"{findings} findings"
