"""The validation report, and how sure it makes us."""

from __future__ import annotations

from pagantic_common.domain.validation import Enforcement, Guarantee, StageOutcome
from services.orchestrator.core.request import Mode, Request
from services.orchestrator.core.response import ValidationReport
from services.orchestrator.core.voting import Count

_NO_SOURCE = "UNSPECIFIED"


def report_of(request: Request, enforcement: Enforcement, repair_attempts: int) -> ValidationReport:
    """Sum up the attempt that is delivered."""
    outcomes = [stage.outcome for stage in enforcement.stages]
    guarantee = enforcement.guarantee
    warnings = enforcement.warnings
    if not enforcement.valid:
        if request.output.schema_json:
            guarantee = Guarantee.PARTIAL
        warnings = (*warnings, "the output does not satisfy its contract")
    return ValidationReport(
        checks_passed=outcomes.count(StageOutcome.PASSED) + outcomes.count(StageOutcome.REPAIRED),
        checks_failed=outcomes.count(StageOutcome.FAILED),
        repair_attempts=repair_attempts,
        remaining_violations=() if enforcement.valid else enforcement.violations,
        guarantee=guarantee,
        warnings=warnings,
        stages=enforcement.stages,
    )


def confidence_of(request: Request, enforcement: Enforcement | None, count: Count | None) -> tuple[float | None, str]:
    """Return the confidence and its source: votes, the semantic score, or whether validation passed; else None."""
    if request.mode is Mode.REDUNDANT:
        return (count.agreement, "VOTING") if count and count.agreement > 0 else (None, _NO_SOURCE)
    confidence = _of_validation(request, enforcement)
    return confidence, _NO_SOURCE if confidence is None else "VALIDATION"


def _of_validation(request: Request, enforcement: Enforcement | None) -> float | None:
    if enforcement is None or not (request.mode is Mode.STRUCTURED or request.rules or request.semantic_intent):
        return None
    if enforcement.semantic_score is not None:
        return enforcement.semantic_score
    return 1.0 if enforcement.valid else 0.0
