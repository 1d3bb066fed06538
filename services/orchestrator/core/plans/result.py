"""Applies the request's contract to the final step of a plan, and picks the content of the plan's response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from services.orchestrator.core.model.plan import Plan, PlanPolicy, StepResult, ValueKind, retry_of
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.plans.checking import check_plan
from services.orchestrator.core.plans.step_rules import CHECKED


def accept_plan(request: Request, plan: Plan, bounds: PlanPolicy) -> tuple[Plan, Failure | None]:
    """Return the plan as it runs, and why it cannot.

    The request's output contract is the final step's where that has none of its own; its rules and intent are too.
    """
    final = plan.steps[-1] if plan.steps else None
    if final is not None and not request.output.is_empty and final.output.is_empty:
        plan = replace(plan, steps=(*plan.steps[:-1], replace(final, output=request.output)))
    plan, failure = check_plan(plan, bounds)
    if failure is None and (wrong := _objection_to_retries(plan, request)):
        failure = failure_of(ErrorCode.ORCHESTRATION_PLAN_REJECTED, f"the plan is rejected: {wrong}")
    if (
        failure is None
        and final is not None
        and final.kind not in CHECKED
        and (request.rules or request.semantic_intent)
    ):
        message = f"the request's rules and intent bind the final step {final.name!r}, which is of kind {final.kind}"
        failure = failure_of(ErrorCode.ORCHESTRATION_STEP_MISMATCH, message)
    return plan, failure


def _objection_to_retries(plan: Plan, request: Request) -> str:
    """Return what is wrong with a step's retries, which are in part its own and in part the request's."""
    for step in plan.steps:
        if wrong := retry_of(step, request.retry).objection:
            return f"step {step.name!r} has an invalid retry policy: {wrong}"
    return ""


def content_of(plan: Plan | None, results: Sequence[StepResult]) -> str:
    """Return what the final step gave as text; of a plan that did not get there, the last step that ended."""
    final = plan.steps[-1].name if plan is not None and plan.steps else ""
    ended = next((result for result in results if result.name == final), results[-1] if results else None)
    output = ended.output if ended is not None else None
    return output.text if output is not None and output.kind in (ValueKind.TEXT, ValueKind.RAW_JSON) else ""
