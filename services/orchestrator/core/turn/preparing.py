"""The phases before the answer: guards check the request, a plan is accepted, and PREPARE resolves the first inference.

PREPARE refuses a request if its context probably lacks the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.grounding import refusal_of, unquotable_failure
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.guards.texts import with_texts
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.response_warning import GuardWarnings
from services.orchestrator.core.plans.checking import accept_plan
from services.orchestrator.core.turn.answering import infer
from services.orchestrator.core.turn.deciding import decide
from services.orchestrator.core.turn.ending import abstain, fail, move
from services.orchestrator.core.turn.plan_steps import RunPlan
from services.orchestrator.core.turn.run import Outcome, Run, State
from services.orchestrator.core.turn.voting import sample

PREPARE = "prepare"  # name of the step


@dataclass(frozen=True, slots=True)
class Prepare(AnsweredCommand):
    """The command to resolve the history, the context, the tools and the constraint."""

    answer: ClassVar[type[Prepared]] = Prepared
    step: ClassVar[str] = PREPARE

    def after(self, run: Run, prepared: Prepared) -> Outcome:
        """Ask for the answer, the replicas, the decisions or the plan's steps, unless the request is refused."""
        run = replace(run, prepared=prepared, is_in_tool_phase=bool(prepared.tools))
        refusal = refusal_of(run.request, prepared.retrieval_confidence)
        if refusal is not None:
            return _refuse(run, refusal)
        failure = unquotable_failure(run.request.output.citations, prepared.cited_chunks)
        if failure is not None:
            return fail(run, failure)
        if run.request.mode is Mode.REDUNDANT:
            return move(run, State.EXECUTE, "prepared", sample(run))
        if run.request.mode is Mode.DECIDE:
            return move(run, State.EXECUTE, "prepared", decide(run))
        if run.plan is not None:
            return move(run, State.EXECUTE, "prepared", RunPlan(run.plan))
        return move(run, State.EXECUTE, "prepared", infer(run))


def _refuse(run: Run, refusal: Failure) -> Outcome:
    """End the run with an abstention if the model may abstain, or with the failure otherwise."""
    citations = run.request.output.citations
    if citations is None or not citations.may_abstain:
        return fail(run, refusal)
    moved = move(run, State.EXECUTE, "prepared")
    ended = abstain(moved.run, "the context is too unlikely to have the answer")
    return replace(ended, transitions=(*moved.transitions, *ended.transitions))


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


@dataclass(frozen=True, slots=True)
class InputChecked(Answer):
    """The guards' result for a request that is not blocked.

    `texts` contains all texts of the request, in order, if a guard redacted any; otherwise it is empty.
    """

    kind: ClassVar[str] = "InputChecked"

    texts: tuple[str, ...] = ()
    warnings: GuardWarnings = ()
    usage: TokenUsage = TokenUsage()


@dataclass(frozen=True, slots=True)
class CheckInput(AnsweredCommand):
    """The command to have the deployment's guards check the request."""

    answer: ClassVar[type[InputChecked]] = InputChecked

    def after(self, run: Run, checked: InputChecked) -> Outcome:
        """Start the work on the request, with the texts redacted by the guards."""
        request = run.request
        if checked.texts:
            request = with_texts(request, iter(checked.texts))
        return begin_work(replace(run, request=request, warnings=checked.warnings))


def begin_work(run: Run) -> Outcome:
    """Start with the plan in mode PLAN, or otherwise with PREPARE."""
    if run.request.mode is Mode.PLAN:
        return start_plan(run)
    return move(run, State.PREPARE, "no plan is needed", Prepare())
