"""Decides which steps of a plan run next.

Invariants:
    1. A step starts once, when each of its dependencies has an output.
    2. After a failure no step starts; running steps continue to their end.
    3. A linear policy runs one step at a time, in the plan's order.
    4. At most MAX_PARALLEL steps run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.orchestrator.core.model.plan import MAX_PARALLEL, Plan, Step, StepResult, Value, dependencies_of


@dataclass(frozen=True, slots=True)
class PlanSchedule:
    """The running and ended steps of a plan. Steps with initial results are not run again."""

    plan: Plan
    results: tuple[StepResult, ...] = ()
    running: frozenset[str] = field(default_factory=frozenset)

    @property
    def has_failed(self) -> bool:
        """Whether a step failed."""
        return any(result.failure is not None for result in self.results)

    def ready(self) -> tuple[Step, ...]:
        """Return the steps that may start now, in the plan's order."""
        if self.has_failed:
            return ()
        done = {result.name for result in self.results}
        needed = dependencies_of(self.plan)
        open_steps = [step for step in self.plan.steps if step.name not in done]
        if self.plan.policy.require_linear:
            open_steps = open_steps[:1]
        ready = [step for step in open_steps if step.name not in self.running and done.issuperset(needed[step.name])]
        return tuple(ready[: max(0, MAX_PARALLEL - len(self.running))])

    def started(self, step: Step) -> PlanSchedule:
        """Return the schedule after a step has started."""
        return replace(self, running=self.running | {step.name})

    def ended(self, result: StepResult) -> PlanSchedule:
        """Return the schedule after a step has ended. Results are in the order in which the steps ended."""
        return replace(self, running=self.running - {result.name}, results=(*self.results, result))

    def inputs_of(self, step: Step) -> dict[str, Value]:
        """Return the outputs that a step works on, by step.

        The outputs are empty for a step that works on its explicit input or on the request.
        """
        if step.input is not None:
            return {}
        outputs = {result.name: result.output for result in self.results}
        return {
            name: output for name in dependencies_of(self.plan)[step.name] if (output := outputs.get(name)) is not None
        }
