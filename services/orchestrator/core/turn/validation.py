"""Determines the validation report, the citations and the confidence of a response."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pagantic_common.domain.text.citations import ABSTENTION_JSON, NOT_IN_SOURCES, read_claims, text_of
from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome, Violation
from services.orchestrator.core.conversation.citations import CitedText, citations_of, is_quoted
from services.orchestrator.core.conversation.prompt import last_user_text
from services.orchestrator.core.conversation.retrieval import retrieval_confidence
from services.orchestrator.core.model.plan import StepKind, ValueKind, dependencies_of
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import ConfidenceSource, Response, ValidationReport
from services.orchestrator.core.model.voting import Count
from services.orchestrator.core.turn.run import Run

_JSON_BEGINNING: Final = '{"in_sources"'


def report_of(
    request: Request, enforcement: Enforcement, repair_attempts: int, *, is_cut: bool = False
) -> ValidationReport:
    """Return the report on the delivered attempt.

    An attempt that was cut off at a limit has the guarantee PARTIAL, even if a repair completed it.
    """
    outcomes = [stage.outcome for stage in enforcement.stages]
    guarantee = enforcement.guarantee
    warnings = enforcement.warnings
    remaining: tuple[Violation, ...] = ()
    if not enforcement.valid:
        remaining = enforcement.violations
        if request.output.shown_schema_json:
            guarantee = Guarantee.PARTIAL
        warnings = (*warnings, "the output does not satisfy its contract")
    elif is_cut:
        guarantee = Guarantee.PARTIAL
        warnings = (*warnings, "the output was cut, and a repair alone closes it")
    return ValidationReport(
        checks_passed=outcomes.count(StageOutcome.PASSED) + outcomes.count(StageOutcome.REPAIRED),
        checks_failed=outcomes.count(StageOutcome.FAILED),
        repair_attempts=repair_attempts,
        remaining_violations=remaining,
        guarantee=guarantee,
        warnings=warnings,
        stages=enforcement.stages,
    )


def with_citations(run: Run, response: Response, guarantee: Guarantee) -> Response:
    """Return a response with the citations and the readable text of its answer's JSON.

    The response has no citations if any claim is not supported by its chunk, which can occur in an unvalidated answer.
    """
    claims, chunks = read_claims(response.content), run.prepared.cited_chunks
    if claims is None or not all(is_quoted(claim, chunks) for claim in claims):
        return with_cited_text(response)
    return replace(response, content=text_of(claims), citations=citations_of(claims, chunks, guarantee))


def with_cited_text(response: Response) -> Response:
    """Return a response with the readable text of a truncated or invalid answer, as it was streamed.

    The text may be empty. Content that is not an answer's JSON is unchanged.
    """
    content = response.content
    text = CitedText().feed(content)
    if not text and not content.startswith(_JSON_BEGINNING) and not _JSON_BEGINNING.startswith(content):
        return response
    return replace(response, content=text)


def with_abstention(response: Response) -> Response:
    """Return a response that states that the sources do not contain the answer."""
    return replace(response, content=NOT_IN_SOURCES, structured_output_json=ABSTENTION_JSON)


def confidence_of(
    request: Request, enforcement: Enforcement | None, count: Count | None
) -> tuple[float | None, ConfidenceSource]:
    """Return the confidence and its source. The confidence is None if it is unknown.

    The confidence is based on the votes, the semantic score, or the outcome of the rules. A schema alone says nothing
    about the quality of an answer.
    """
    if request.mode is Mode.REDUNDANT:
        return _of_votes(count)
    confidence = _of_validation(request, enforcement)
    if confidence is None:
        return None, ConfidenceSource.UNSPECIFIED
    return confidence, ConfidenceSource.VALIDATION


def _of_votes(count: Count | None) -> tuple[float | None, ConfidenceSource]:
    if count is None or count.agreement == 0:
        return None, ConfidenceSource.UNSPECIFIED
    return count.agreement, ConfidenceSource.VOTING


def _of_validation(request: Request, enforcement: Enforcement | None) -> float | None:
    if enforcement is None or not (request.rules or request.semantic_intent):
        return None
    if enforcement.semantic_score is not None:
        return enforcement.semantic_score
    if not request.rules:
        return None
    if not enforcement.valid or _outcome_of(enforcement, Stage.RULES) is StageOutcome.FAILED:
        return 0.0
    return 1.0


def _outcome_of(enforcement: Enforcement, stage: Stage) -> StageOutcome | None:
    return next((report.outcome for report in enforcement.stages if report.stage is stage), None)


def retrieval_confidence_of(run: Run) -> float | None:
    """Return the confidence of the context that PREPARE or the plan's steps retrieved, after any reranking."""
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
