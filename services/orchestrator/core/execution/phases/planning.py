"""The plan of an execution: it is accepted before PREPARE, runs in EXECUTE, and its steps are validated."""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.core.execution.commands import MakePlan, Prepare
from services.orchestrator.core.execution.ending import complete, fail, move
from services.orchestrator.core.execution.inputs import Planned, PlanRan
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.run import Outcome, Run
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.plans.result import accept_plan


def start_plan(run: Run) -> Outcome:
    """Accept the plan in the request, or have the planner make a plan."""
    if run.request.plan is None:
        return move(run, State.PLAN, "the planner makes the plan", MakePlan())
    moved = move(run, State.PLAN, "the request brings its plan")
    outcome = _accept_plan(moved.run, run.request.plan)
    return replace(outcome, transitions=(*moved.transitions, *outcome.transitions))


def after_planning(run: Run, planned: Planned) -> Outcome:
    """Accept the planner's plan."""
    return _accept_plan(replace(run, model=planned.model or run.model), planned.plan)


def _accept_plan(run: Run, plan: Plan) -> Outcome:
    plan, failure = accept_plan(run.request, plan, run.bounds)
    run = replace(run, plan=plan)
    if failure:
        return fail(run, failure)
    return move(run, State.PREPARE, f"{len(plan.steps)} steps, by {plan.trace.planner_id}", Prepare())


def after_plan(run: Run, ran: PlanRan) -> Outcome:
    """End the run with the plan's results, or with the failure of a step."""
    run = replace(run, results=ran.results, records=ran.records, model=ran.model or run.model)
    run = run.with_best(ran.enforcement)
    for result in ran.results:
        if result.failure is not None:
            return fail(run, result.failure)
    moved = move(run, State.VALIDATE, f"{len(ran.results)} steps ended")
    done = complete(moved.run, "each step satisfied its contract")
    return replace(done, transitions=(*moved.transitions, *done.transitions))
