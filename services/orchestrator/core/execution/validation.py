"""The validation report, and how sure it makes us."""

from __future__ import annotations

from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.conversation.retrieval import retrieval_confidence
from services.orchestrator.core.execution.run import Run
from services.orchestrator.core.model.plan import StepKind, ValueKind, dependencies_of
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import ValidationReport
from services.orchestrator.core.model.voting import Count

_NO_SOURCE = "UNSPECIFIED"


def report_of(
    request: Request, enforcement: Enforcement, repair_attempts: int, *, is_cut: bool = False
) -> ValidationReport:
    """Sum up the attempt that is delivered; one that a limit cut is PARTIAL, however well it was repaired."""
    outcomes = [stage.outcome for stage in enforcement.stages]
    guarantee = enforcement.guarantee
    warnings = enforcement.warnings
    if not enforcement.valid:
        if request.output.schema_json:
            guarantee = Guarantee.PARTIAL
        warnings = (*warnings, "the output does not satisfy its contract")
    elif is_cut:
        guarantee = Guarantee.PARTIAL
        warnings = (*warnings, "the output was cut at a limit and closed by repair")
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
    """Return the confidence and its source: votes, the semantic score, or whether the rules held; else None.

    A schema alone tells nothing of how good an answer is.
    """
    if request.mode is Mode.REDUNDANT:
        return (count.agreement, "VOTING") if count and count.agreement > 0 else (None, _NO_SOURCE)
    confidence = _of_validation(request, enforcement)
    return confidence, _NO_SOURCE if confidence is None else "VALIDATION"


def _of_validation(request: Request, enforcement: Enforcement | None) -> float | None:
    if enforcement is None or not (request.rules or request.semantic_intent):
        return None
    if enforcement.semantic_score is not None:
        return enforcement.semantic_score
    if not request.rules:
        return None
    return 0.0 if _outcome_of(enforcement, Stage.RULES) is StageOutcome.FAILED or not enforcement.valid else 1.0


def _outcome_of(enforcement: Enforcement, stage: Stage) -> StageOutcome | None:
    return next((report.outcome for report in enforcement.stages if report.stage is stage), None)


def retrieval_confidence_of(run: Run) -> float | None:
    """Return the confidence of what PREPARE retrieved, or the steps of a plan: after reranking, where there is one."""
    if run.plan is None:
        return run.prepared.retrieval_confidence
    needed = dependencies_of(run.plan)
    reranked = {name for step in run.plan.steps if step.kind == StepKind.RERANK for name in needed[step.name]}
    chunks = [
        chunk
        for result in run.results
        if result.output is not None and result.output.kind is ValueKind.CONTEXT and result.name not in reranked
        for chunk in result.output.chunks
    ]
    return retrieval_confidence(last_user_text(run.request, ()), chunks)
