"""The data that the steps of a plan share, and the data of one attempt of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import Progress
from services.orchestrator.core.model.plan import Plan, Step, StepKind, StepResult, Value, path_of_step
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.plans.step_input import request_of_step
from services.orchestrator.core.tools.taint import Provenance


@dataclass(slots=True)
class PlanScope:
    """The data that the steps of one plan share.

    Attributes:
        request: The request, with the results of PREPARE.
        tools: The tools that the plan may call, by name.
        scope: The scope of the execution.
        surroundings: Returns the provenance of the texts that the plan's steps use.
        enforcement: The result of the pipeline for the final step's output.
        model: The alias that served the last inference.
        last_attempts: The last attempt of each infer step, because one run of its machine may make several attempts.
    """

    request: Request
    plan: Plan
    tools: Mapping[str, ToolDefinition]
    scope: RunScope
    surroundings: Callable[[], Provenance]
    enforcement: Enforcement | None = None
    model: str = ""
    last_attempts: dict[str, int] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        """The progress of the execution, which includes the plan."""
        return self.scope.recorder.progress

    def is_final(self, step: Step | StepResult) -> bool:
        """Return whether a step is the final step, whose output is the plan's output."""
        return step.name == self.plan.steps[-1].name

    async def take_recorded(self) -> None:
        """Copy the results of steps that a replay does not run again."""
        recorded = () if self.scope.taken is None else self.scope.taken.steps
        ended_names = {step.result.name for step in self.progress.steps}
        for ended in recorded:
            if ended.result.name not in ended_names:
                name = path_of_step(ended.result.name)
                await self.scope.recorder.emit(events.StepRecorded(name), entries=[ended], is_durable=True)

    def take_ended(self) -> tuple[StepResult, ...]:
        """Return the results of the steps that ended before an interruption."""
        ended = self.progress.steps
        self.enforcement = next((step.enforcement for step in ended if self.is_final(step.result)), None)
        return tuple(step.result for step in ended)


@dataclass(frozen=True, slots=True)
class StepAttempt:
    """One attempt of a step.

    Attributes:
        inputs: The step's inputs, by the step that produced them.
        number: Number of the attempt in this process, from 1. The first attempt continues an interrupted attempt.
        run_number: Number of the first attempt of the step's machine, including attempts before an interruption.
    """

    step: Step
    inputs: Mapping[str, Value]
    plan: PlanScope
    number: int
    run_number: int

    @property
    def path(self) -> str:
        """The path of the step."""
        return path_of_step(self.step.name)

    @property
    def is_first(self) -> bool:
        """Whether this is the first attempt in this process, which may have begun before an interruption."""
        return self.number == 1

    @property
    def has_called(self) -> bool:
        """Whether the step has called a tool that may have run."""
        return self.plan.progress.has_called(self.path)

    @property
    def timeout_s(self) -> float | None:
        """The shorter of the step's and the plan's timeout; None without a timeout, or if the step waits."""
        if self.step.kind == StepKind.WAIT:
            return None
        timeouts = (self.step.timeout_s, self.plan.plan.policy.timeout_per_step_s)
        return min((timeout for timeout in timeouts if timeout), default=None)

    @property
    def request(self) -> Request:
        """The request that the turn of the step answers."""
        return request_of_step(self.step, self.plan.plan, self.plan.request, self.inputs)

    def scope(self) -> RunScope:
        """Return the scope for the work of the step."""
        begins = 0
        if not self.is_first:
            begins = len(self.plan.progress.inner)
        scope = replace(self.plan.scope, may_park=self.plan.scope.may_park and self.timeout_s is None)
        return scope.for_child(self.path, self.step.name, self.plan.surroundings, self.run_number, begins)


@dataclass(frozen=True, slots=True)
class StepDone:
    """The result of an attempt. `usage` excludes the usage of the step's machine."""

    output: Value
    usage: TokenUsage = TokenUsage()
    enforcement: Enforcement | None = None
    warnings: tuple[ResponseWarning, ...] = ()


class StepFailedError(Exception):
    """The error for a failed attempt. `usage` excludes the usage of the step's machine."""

    def __init__(self, failure: Failure, usage: TokenUsage = TokenUsage()) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.usage = usage
