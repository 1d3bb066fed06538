"""Plans, their steps, and the values that the steps exchange.

A plan is linear if no step names a dependency: each step waits for the previous step. In any other plan, a step waits
only for the steps that it names. The input of a step is its explicit input, else the outputs of its dependencies, else
the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import Failure
from pagantic_common.domain.messages import Message
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy
from services.orchestrator.core.model.response_warning import ResponseWarning

MAX_STEPS = 64
MAX_PARALLEL = 8  # concurrent steps of a plan; each may run an inference
MAX_PARALLEL_CALLS = 16  # concurrent tool calls of an execution; they mostly wait for other systems
MAX_STEP_TIMEOUT_S = 366 * 86_400.0
_TIMEOUT_RANGE = f"it must be positive and at most {MAX_STEP_TIMEOUT_S:g} s"
STEP_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # Step names are part of IDs and paths, so their form is limited.
PLAN_PATH = "plan/"


def path_of_step(name: str) -> str:
    """Return the path of the child that runs a step of the execution's plan."""
    return PLAN_PATH + name


class StepKind(StrEnum):
    """A built-in kind of step."""

    INFER = "infer"
    TOOL = "tool"
    VALIDATE = "validate"
    RETRIEVE = "retrieve"
    RERANK = "rerank"
    WAIT = "wait"


class ValueKind(StrEnum):
    """The kind of a value, named after its field in the contract."""

    MESSAGES = "messages"
    CANDIDATES = "candidates"
    CONTEXT = "context"
    TOOL_RESULTS = "tool_results"
    TEXT = "text"
    RAW_JSON = "raw_json"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate with its score."""

    content: str
    source: str = ""
    score: float = 0.0
    score_kind: str = ""
    metadata_json: str = ""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a tool call."""

    call_id: str
    name: str
    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a step: text for TEXT and RAW_JSON, or otherwise a tuple of parts of its kind."""

    kind: ValueKind
    text: str = ""
    messages: tuple[Message, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    results: tuple[CallResult, ...] = ()

    @property
    def scores(self) -> tuple[float, ...]:
        """The scores of the value's proposals and chunks."""
        proposed = tuple(proposal.score for proposal in self.proposals)
        return proposed + tuple(chunk.score for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a plan. None or 0 means that a setting is unset."""

    name: str
    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    input: Value | None = None
    depends_on: tuple[str, ...] = ()
    output: OutputContract = field(default_factory=OutputContract)
    max_retries: int | None = None
    timeout_s: float | None = None
    retry: RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """The limits of a plan.

    An `allowed_kinds` of None allows all kinds. `custom_kinds` are the kinds that the deployment registered.
    """

    max_steps: int = MAX_STEPS
    allowed_kinds: frozenset[str] | None = None
    custom_kinds: frozenset[str] = frozenset()
    require_linear: bool = False
    timeout_per_step_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlanTrace:
    """The origin of a plan, and its creation time if known."""

    planner_id: str = "request"
    rationale: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a plan, and their limits."""

    steps: tuple[Step, ...] = ()
    policy: PlanPolicy = field(default_factory=PlanPolicy)
    trace: PlanTrace = field(default_factory=PlanTrace)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step: an output or a failure."""

    name: str
    kind: str
    output: Value | None = None
    failure: Failure | None = None
    attempts: int = 1
    duration_s: float = 0.0
    usage: TokenUsage = field(default_factory=TokenUsage)
    warnings: tuple[ResponseWarning, ...] = ()


def tools_of(plan: Plan) -> frozenset[str]:
    """Return the names of the tools that a plan uses."""
    called = {str(step.parameters["tool"]) for step in plan.steps if step.kind == StepKind.TOOL}
    return frozenset(called.union(*(step.parameters.get("tools", ()) for step in plan.steps)))


def dependencies_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return the dependencies of each step. The outputs of the dependencies are the inputs of the step."""
    if any(step.depends_on for step in plan.steps):
        return {step.name: step.depends_on for step in plan.steps}
    before = [(), *((step.name,) for step in plan.steps)]
    return {step.name: needed for step, needed in zip(plan.steps, before, strict=False)}


def retry_of(step: Step, given: RetryPolicy) -> RetryPolicy:
    """Return a step's retry policy, with unset fields taken from the request's policy."""
    retry = step.retry or given
    if step.max_retries is None:
        return retry
    return replace(retry, max_retries=step.max_retries)
