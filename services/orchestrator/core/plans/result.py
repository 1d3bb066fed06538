"""Applies the request's contract to a plan's final step, and selects the content of the plan's response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.plan import Plan, PlanPolicy, StepResult, ValueKind, retry_of
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.plans.checking import check_plan
from services.orchestrator.core.plans.step_rules import CHECKED


def accept_plan(request: Request, plan: Plan, bounds: PlanPolicy) -> tuple[Plan, Failure | None]:
    """Return the plan with the request's contract on its final step, and the failure of a plan that cannot run.

    If the final step has a contract, it keeps that contract. The request's rules and intent also apply to that step.
    """
    plan, failure = check_plan(_with_final_contract(plan, request), bounds)
    if failure is not None:
        return plan, failure
    if wrong := _objection_to_retries(plan, request):
        return plan, failure_of(ErrorCode.ORCHESTRATION_PLAN_REJECTED, f"the plan is rejected: {wrong}")
    if mismatch := _mismatch_of_final(plan, request):
        return plan, failure_of(ErrorCode.ORCHESTRATION_STEP_MISMATCH, mismatch)
    return plan, None


def _with_final_contract(plan: Plan, request: Request) -> Plan:
    if not plan.steps or request.output == OutputContract() or not plan.steps[-1].output.is_empty:
        return plan
    *others, final = plan.steps
    return replace(plan, steps=(*others, replace(final, output=request.output)))


def _mismatch_of_final(plan: Plan, request: Request) -> str:
    if not plan.steps or not (request.rules or request.semantic_intent):
        return ""
    final = plan.steps[-1]
    if final.kind in CHECKED:
        return ""
    return f"the request's rules and intent bind the final step {final.name!r}, which is of kind {final.kind}"


def _objection_to_retries(plan: Plan, request: Request) -> str:
    """Return the reason that a step's retry policy, merged with the request's policy, is invalid.

    Returns an empty string if all policies are valid.
    """
    for step in plan.steps:
        if wrong := retry_of(step, request.retry).objection:
            return f"step {step.name!r} has an invalid retry policy: {wrong}"
    return ""


def content_of(plan: Plan | None, results: Sequence[StepResult]) -> str:
    """Return the text of the final step, or of the last step that ended if the final step did not end.

    Candidates and chunks are not text, so they are only in the step's output.
    """
    ended = final_result(plan, results)
    if ended is None and results:
        ended = results[-1]
    if ended is None or ended.output is None:
        return ""
    if ended.output.kind is ValueKind.TOOL_RESULTS:
        return "\n".join(result.content for result in ended.output.results)
    return ended.output.text


def final_result(plan: Plan | None, results: Sequence[StepResult]) -> StepResult | None:
    """Return the result of a plan's final step, or None if the step has not ended."""
    if plan is None or not plan.steps:
        return None
    for result in results:
        if result.name == plan.steps[-1].name:
            return result
    return None
