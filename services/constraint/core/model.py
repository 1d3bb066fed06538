"""What the pipeline takes and gives, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import ErrorCode, Failure


class Stage(StrEnum):
    """Stages in the order they run."""

    DECODER_CONSTRAINT = "DECODER_CONSTRAINT"
    JSON_REPAIR = "JSON_REPAIR"
    ENUM_NORMALIZATION = "ENUM_NORMALIZATION"
    SCHEMA_VALIDATION = "SCHEMA_VALIDATION"
    RULES = "RULES"
    SEMANTIC = "SEMANTIC"


class Outcome(StrEnum):
    """How a stage ended."""

    PASSED = "PASSED"
    REPAIRED = "REPAIRED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class Guarantee(StrEnum):
    """How an output came to satisfy its schema."""

    UNSPECIFIED = "UNSPECIFIED"
    ENFORCED = "ENFORCED"
    VALIDATED = "VALIDATED"
    REPAIRED = "REPAIRED"
    PARTIAL = "PARTIAL"


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which an output is wrong; the path is empty at the root and for text."""

    code: ErrorCode
    message: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage found."""

    stage: Stage
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on an output: a CEL expression, or a built-in kind with parameters."""

    name: str
    expression: str | None = None
    kind: str = ""
    parameters_json: str = ""


@dataclass(frozen=True, slots=True)
class Contract:
    """What an output must look like; at most one of grammar and grammar_name is set."""

    schema_json: str = ""
    grammar: str | None = None
    grammar_name: str | None = None
    decoder_constraint: bool = True
    repair_allowed: bool = True


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What the pipeline made of an output."""

    valid: bool
    output: str
    structured_output_json: str
    stages: tuple[StageReport, ...]
    guarantee: Guarantee
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused before it can hurt the process."""

    max_schema_bytes: int
    max_schema_depth: int
    max_output_bytes: int
