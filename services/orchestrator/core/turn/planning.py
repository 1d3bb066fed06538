"""The plan of a run: it is accepted before PREPARE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.kernel.lifecycle import State
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.plans.result import accept_plan
from services.orchestrator.core.turn.ending import fail, move
from services.orchestrator.core.turn.preparing import Prepare
from services.orchestrator.core.turn.run import Outcome, Run


@dataclass(frozen=True, slots=True)
class Planned(Answer):
    """The plan that the planner made."""

    kind: ClassVar[str] = "Planned"

    plan: Plan
    usage: TokenUsage = TokenUsage()
    model: str = ""


@dataclass(frozen=True, slots=True)
class MakePlan(AnsweredCommand):
    """The command to have the planner make a plan for the request."""

    answer: ClassVar[type[Planned]] = Planned
    step: ClassVar[str] = "plan"

    def after(self, run: Run, planned: Planned) -> Outcome:
        """Accept the planner's plan."""
        return _accept_plan(replace(run, model=planned.model or run.model), planned.plan)


def start_plan(run: Run) -> Outcome:
    """Accept the plan in the request, or have the planner make a plan."""
    if run.request.plan is None:
        return move(run, State.PLAN, "the planner makes the plan", MakePlan())
    moved = move(run, State.PLAN, "the request brings its plan")
    outcome = _accept_plan(moved.run, run.request.plan)
    return replace(outcome, transitions=(*moved.transitions, *outcome.transitions))


def _accept_plan(run: Run, plan: Plan) -> Outcome:
    plan, failure = accept_plan(run.request, plan, run.bounds)
    run = replace(run, plan=plan)
    if failure:
        return fail(run, failure)
    return move(run, State.PREPARE, f"{len(plan.steps)} steps, by {plan.trace.planner_id}", Prepare())
