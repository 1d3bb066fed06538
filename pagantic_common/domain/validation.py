"""Results of the constraint pipeline: stages, violations, and the guarantee for an output."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import ErrorCode, Failure
from pagantic_common.domain.usage import TokenUsage


class Stage(StrEnum):
    """The stages of the constraint pipeline, in execution order."""

    DECODER_CONSTRAINT = "DECODER_CONSTRAINT"
    JSON_REPAIR = "JSON_REPAIR"
    ENUM_NORMALIZATION = "ENUM_NORMALIZATION"
    SCHEMA_VALIDATION = "SCHEMA_VALIDATION"
    RULES = "RULES"
    SEMANTIC = "SEMANTIC"


class StageOutcome(StrEnum):
    """The outcomes of a stage."""

    PASSED = "PASSED"
    REPAIRED = "REPAIRED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class Guarantee(StrEnum):
    """The guarantee that an output satisfies its schema. Each name states the method."""

    UNSPECIFIED = "UNSPECIFIED"
    ENFORCED = "ENFORCED"
    VALIDATED = "VALIDATED"
    REPAIRED = "REPAIRED"
    PARTIAL = "PARTIAL"


@dataclass(frozen=True, slots=True)
class Violation:
    """A defect of an output. The path is empty for the root and for an output in text form."""

    code: ErrorCode | None
    message: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class StageReport:
    """The outcome of a stage, with its reasons, violations and duration."""

    stage: Stage
    outcome: StageOutcome
    reasons: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The pipeline's result for an output. `judge_usage` is the cost of the semantic stage."""

    valid: bool
    output: str
    structured_output_json: str = ""
    stages: tuple[StageReport, ...] = ()
    guarantee: Guarantee = Guarantee.UNSPECIFIED
    failure: Failure | None = None
    semantic_score: float | None = None
    judge_usage: TokenUsage = TokenUsage()
    warnings: tuple[str, ...] = ()

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All violations, in the order of the stages."""
        return tuple(violation for stage in self.stages for violation in stage.violations)
