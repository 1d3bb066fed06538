"""Checks plans against their policies, and applies the contract of a request to its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, Failure, InvalidRequest, failure_of
from pagantic_common.domain.messages import check_turn
from services.orchestrator.core.model.contract import MAX_RETRIES, OutputContract
from services.orchestrator.core.model.plan import (
    MAX_STEP_TIMEOUT_S,
    STEP_NAME,
    Plan,
    PlanPolicy,
    Step,
    StepKind,
    ValueKind,
    dependencies_of,
    retry_of,
)
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.plans.step_rules import CHECKED, check_parameters, rules_of

_TIMEOUT_RANGE = f"it must be positive and at most {MAX_STEP_TIMEOUT_S:g} s"


def accept_plan(request: Request, plan: Plan, bounds: PlanPolicy) -> tuple[Plan, Failure | None]:
    """Return the plan with the request's contract on its final step, and the failure of a plan that cannot run.

    An existing contract of the final step is kept. The request's rules and intent also apply to that step.
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


def check_plan(plan: Plan, bounds: PlanPolicy) -> tuple[Plan, Failure | None]:
    """Bound the plan's policy and check the plan.

    Returns the bounded plan, and its failure (PLAN_REJECTED or STEP_MISMATCH), or None if the plan is valid.
    """
    requested_policy = plan.policy
    plan = replace(plan, policy=_bounded(requested_policy, bounds))
    objection = _objection_to_policy(requested_policy) or _objection(plan)
    if objection:
        return plan, failure_of(ErrorCode.ORCHESTRATION_PLAN_REJECTED, f"the plan is rejected: {objection}")
    mismatch = _mismatch(plan)
    if mismatch:
        return plan, failure_of(ErrorCode.ORCHESTRATION_STEP_MISMATCH, mismatch)
    return plan, None


def _bounded(policy: PlanPolicy, bounds: PlanPolicy) -> PlanPolicy:
    """Return a policy with the stricter limit of the policy and the service's bounds, for each limit."""
    timeouts = (policy.timeout_per_step_s, bounds.timeout_per_step_s)
    return PlanPolicy(
        max_steps=min(policy.max_steps, bounds.max_steps),
        allowed_kinds=_both(policy.allowed_kinds, bounds.allowed_kinds),
        custom_kinds=bounds.custom_kinds,
        require_linear=policy.require_linear or bounds.require_linear,
        timeout_per_step_s=min((timeout for timeout in timeouts if timeout), default=None),
    )


def _both(some: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    if some is None:
        return others
    if others is None:
        return some
    return some & others


def _objection(plan: Plan) -> str:
    names = [step.name for step in plan.steps]
    if len(names) > plan.policy.max_steps:
        return f"it has {len(names)} steps, at most {plan.policy.max_steps} are allowed"
    for step in plan.steps:
        if names.count(step.name) > 1:
            return f"step {step.name!r} is named more than once"
        wrong = _objection_to(step, names, plan.policy)
        if wrong:
            return f"step {step.name!r} {wrong}"
    return _objection_to_order(plan, names)


def _objection_to_order(plan: Plan, names: Sequence[str]) -> str:
    needed = dependencies_of(plan)
    cycle = _cycle(needed)
    if cycle:
        return f"its steps wait for each other: {' -> '.join(cycle)}"
    late = next(
        (name for name in names if any(names.index(dependency) > names.index(name) for dependency in needed[name])),
        None,
    )
    if plan.policy.require_linear and late is not None:
        return f"it must be linear, and step {late!r} depends on a later one"
    return ""


def _objection_to_policy(policy: PlanPolicy) -> str:
    timeout_s = policy.timeout_per_step_s
    if timeout_s is not None and not 0 <= timeout_s <= MAX_STEP_TIMEOUT_S:
        return f"its policy.timeout_per_step is {timeout_s:g} s: {_TIMEOUT_RANGE}"
    return ""


def _objection_to(step: Step, names: Sequence[str], policy: PlanPolicy) -> str:
    if not STEP_NAME.fullmatch(step.name):
        return "has a name that is not of 1 to 64 of the characters A-Z a-z 0-9 . _ : -"
    wrong = _objection_to_kind(step.kind, policy)
    if wrong:
        return wrong
    for name in step.depends_on:
        if name not in names:
            return f"depends on {name!r}, which is not a step"
    wrong = _objection_to_limits(step) or _objection_to_values(step)
    if wrong or step.kind in policy.custom_kinds:
        return wrong
    return check_parameters(StepKind(step.kind), step.parameters)


def _objection_to_kind(kind: str, policy: PlanPolicy) -> str:
    kinds = (*StepKind, *sorted(policy.custom_kinds))
    if kind not in kinds:
        return f"is of kind {str(kind)!r}, which is not known: {', '.join(kinds)}"
    if policy.allowed_kinds is not None and kind not in policy.allowed_kinds:
        return f"is of kind {str(kind)!r}, which is not allowed"
    return ""


def _objection_to_limits(step: Step) -> str:
    if step.max_retries is not None and not 0 <= step.max_retries <= MAX_RETRIES:
        return f"has max_retries {step.max_retries}: it must be between 0 and {MAX_RETRIES}"
    if step.retry is not None and step.retry.objection:
        return f"has an invalid retry policy: {step.retry.objection}"
    if step.timeout_s is not None and not 0 < step.timeout_s <= MAX_STEP_TIMEOUT_S:
        return f"has a timeout of {step.timeout_s:g} s: {_TIMEOUT_RANGE}"
    if step.timeout_s is not None and step.kind == StepKind.WAIT:
        return "has a timeout, which a wait does not take: set its parameter 'timeout_s'"
    return ""


def _objection_to_values(step: Step) -> str:
    if not step.output.is_empty and step.kind not in CHECKED:
        return f"is of kind {step.kind}, whose output no contract can bind"
    if step.input is None or step.input.kind is not ValueKind.MESSAGES:
        return ""
    try:
        check_turn(step.input.messages)
    except InvalidRequest as error:
        return f"has input.messages that are not a valid turn: {error}"
    return ""


def _cycle(dependencies: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the steps of a dependency cycle in order, or an empty list if there is no cycle (Kahn's algorithm)."""
    remaining = dict(dependencies)
    while free := [name for name, needed in remaining.items() if not any(step in remaining for step in needed)]:
        for step in free:
            del remaining[step]
    if not remaining:
        return []
    path: list[str] = []
    name = next(iter(remaining))
    while name not in path:
        path.append(name)
        name = next(step for step in remaining[name] if step in remaining)
    return [*path[path.index(name) :], name]


def _mismatch(plan: Plan) -> str:
    """Return a description of the first output that its receiving step does not accept.

    Returns an empty string if there is no mismatch.
    """
    dependencies = dependencies_of(plan)
    steps = {step.name: step for step in plan.steps}
    gives: dict[str, ValueKind] = {}
    waiting = list(steps)
    while waiting:
        name = waiting.pop(0)
        step, needed = steps[name], dependencies[name]
        if any(dependency not in gives for dependency in needed):
            waiting.append(name)
            continue
        input_kinds = _taken(step, needed, gives)
        wrong = _mismatch_of(step, input_kinds, needed)
        if wrong:
            return wrong
        gives[name] = rules_of(step.kind).gives_of(next(iter(input_kinds.values())))
    return ""


def _taken(step: Step, needed: Sequence[str], gives: Mapping[str, ValueKind]) -> dict[str, ValueKind]:
    """Return the kinds of a step's inputs, keyed by a description of their origin."""
    if step.input is not None:
        return {"its input": step.input.kind}
    if needed:
        return {f"step {dependency!r}, which gives": gives[dependency] for dependency in needed}
    return {"the request, which gives": ValueKind.TEXT}


def _mismatch_of(step: Step, taken: Mapping[str, ValueKind], needed: Sequence[str]) -> str:
    rules = rules_of(step.kind)
    for source, kind in taken.items():
        if kind not in rules.takes:
            return f"step {step.name!r} ({step.kind}) cannot work on {source} {kind}"
    if len(taken) > 1 and not rules.takes_many:
        return f"step {step.name!r} ({step.kind}) works on one value, and waits for {', '.join(map(repr, needed))}"
    return ""
