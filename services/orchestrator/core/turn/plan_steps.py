"""The steps of an accepted plan. They run in EXECUTE, and their results are the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.model.plan import Plan, StepResult
from services.orchestrator.core.model.response import ToolCallRecord
from services.orchestrator.core.turn.ending import complete, fail, move
from services.orchestrator.core.turn.run import Outcome, Run, State


@dataclass(frozen=True, slots=True)
class PlanRan(Answer):
    """The results of the plan's steps, either of all steps or of the steps up to a failure.

    `enforcement` belongs to the output of the final step.
    """

    kind: ClassVar[str] = "PlanRan"

    results: tuple[StepResult, ...]
    records: tuple[ToolCallRecord, ...] = ()
    enforcement: Enforcement | None = None
    model: str = ""

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of the steps."""
        return sum((result.usage for result in self.results), TokenUsage())


@dataclass(frozen=True, slots=True)
class RunPlan(AnsweredCommand):
    """The command to run the steps of an accepted plan."""

    answer: ClassVar[type[PlanRan]] = PlanRan

    plan: Plan

    def after(self, run: Run, ran: PlanRan) -> Outcome:
        """End the run with the plan's results, or with the failure of a step."""
        run = replace(run, results=ran.results, records=ran.records, model=ran.model or run.model)
        run = run.with_best(ran.enforcement)
        for result in ran.results:
            if result.failure is not None:
                return fail(run, result.failure)
        moved = move(run, State.VALIDATE, f"{len(ran.results)} steps ended")
        done = complete(moved.run, "each step satisfied its contract")
        return replace(done, transitions=(*moved.transitions, *done.transitions))
