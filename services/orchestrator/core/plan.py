"""Plans: steps, the order that they need, and what makes a plan acceptable.

A plan in which no step names a dependency is linear: each step waits for the one before it. In any other plan a step
waits for what it names, and one that names nothing waits for none. A step works on its input, else on what it waits
for, else on the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, Failure, InvalidRequest, failure_of
from pagantic_common.domain.messages import Message, check_turn
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.contract import OutputContract
from services.orchestrator.core.response_warning import ResponseWarning
from services.orchestrator.core.retry import MAX_RETRIES, RetryPolicy

MAX_STEPS = 64
MAX_PARALLEL = 8  # pieces of work of one execution at the same time: steps of a plan, or tool calls
MAX_STEP_TIMEOUT_S = 366 * 86_400.0
_TIMEOUT_RANGE = f"it must be positive and at most {MAX_STEP_TIMEOUT_S:g} s"
STEP_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # they are part of ids


class StepKind(StrEnum):
    """What a step does."""

    INFER = "infer"
    TOOL = "tool"
    VALIDATE = "validate"
    RETRIEVE = "retrieve"
    RERANK = "rerank"


class ValueKind(StrEnum):
    """What a value is; the names of the contract's fields."""

    MESSAGES = "messages"
    CANDIDATES = "candidates"
    CONTEXT = "context"
    TOOL_RESULTS = "tool_results"
    TEXT = "text"
    RAW_JSON = "raw_json"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate among several."""

    content: str
    source: str = ""
    score: float = 0.0
    score_kind: str = ""
    metadata_json: str = ""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a tool gave."""

    call_id: str
    name: str
    content: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """What a step works on or gives: text for TEXT and RAW_JSON, else a tuple of its kind's parts."""

    kind: ValueKind
    text: str = ""
    messages: tuple[Message, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    results: tuple[CallResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step; None and 0 mean not set."""

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
    """What a plan may do; `allowed_kinds` None allows all, `custom_kinds` are those that the deployment registered."""

    max_steps: int = MAX_STEPS
    allowed_kinds: frozenset[str] | None = None
    custom_kinds: frozenset[str] = frozenset()
    require_linear: bool = False
    timeout_per_step_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlanTrace:
    """Where a plan came from, and when, where that is known."""

    planner_id: str = "request"
    rationale: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps and what they may do."""

    steps: tuple[Step, ...] = ()
    policy: PlanPolicy = field(default_factory=PlanPolicy)
    trace: PlanTrace = field(default_factory=PlanTrace)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one step; it has an output or a failure."""

    name: str
    kind: str
    output: Value | None = None
    failure: Failure | None = None
    attempts: int = 1
    duration_s: float = 0.0
    usage: TokenUsage = field(default_factory=TokenUsage)
    warnings: tuple[ResponseWarning, ...] = ()


_TEXTS = frozenset({ValueKind.TEXT, ValueKind.RAW_JSON})
TAKES: dict[StepKind, frozenset[ValueKind]] = {
    StepKind.INFER: frozenset(ValueKind),
    StepKind.TOOL: _TEXTS,
    StepKind.VALIDATE: _TEXTS,
    StepKind.RETRIEVE: frozenset({ValueKind.TEXT}),
    StepKind.RERANK: frozenset({ValueKind.CONTEXT, ValueKind.CANDIDATES}),
}
# What each kind gives, by what it takes.
GIVES: dict[StepKind, Mapping[ValueKind, ValueKind]] = {
    StepKind.INFER: dict.fromkeys(ValueKind, ValueKind.TEXT),
    StepKind.TOOL: dict.fromkeys(ValueKind, ValueKind.TOOL_RESULTS),
    StepKind.VALIDATE: {kind: kind for kind in ValueKind},
    StepKind.RETRIEVE: dict.fromkeys(ValueKind, ValueKind.CONTEXT),
    StepKind.RERANK: {kind: kind for kind in ValueKind},
}
CHECKED = frozenset({StepKind.INFER, StepKind.VALIDATE})  # kinds whose output a contract binds
SINGLE = frozenset(StepKind) - {StepKind.INFER}  # kinds that work on one value


def takes_of(kind: str) -> frozenset[ValueKind]:
    """Return what a kind works on; a registered kind takes anything, as text."""
    return TAKES[StepKind(kind)] if kind in tuple(StepKind) else frozenset(ValueKind)


def gives_of(kind: str, taken: ValueKind) -> ValueKind:
    """Return what a kind gives of what it takes; a registered kind gives text."""
    return GIVES[StepKind(kind)][taken] if kind in tuple(StepKind) else ValueKind.TEXT


RANGES: Mapping[str, tuple[float, float]] = {
    "max_tokens": (0, 2**31 - 1),
    "max_chunks": (0, 2**31 - 1),
    "top_k": (0, 2**31 - 1),
    "temperature": (0, 2),
    "top_p": (1e-9, 1),
    "seed": (0, 2**64 - 1),
    "min_score": (-1e300, 1e300),
}
RETRIEVERS = ("bm25", "keyword", "vector", "hybrid")
_Types = tuple[type, ...]
_NUMBER: _Types = (int, float)
# Of each kind: the parameters that it needs, and those that it may have.
PARAMETERS: dict[StepKind, tuple[Mapping[str, _Types], Mapping[str, _Types]]] = {
    StepKind.INFER: (
        {},
        {
            "prompt": (str,),
            "tools": (list,),
            "tool_choice": (str,),
            "model": (str,),
            "max_tokens": (int,),
            "temperature": _NUMBER,
            "top_p": _NUMBER,
            "seed": (int,),
        },
    ),
    StepKind.TOOL: ({"tool": (str,)}, {"arguments": (dict,), "argument": (str,)}),
    StepKind.VALIDATE: ({}, {}),
    StepKind.RETRIEVE: ({"collection": (str,)}, {"max_chunks": (int,), "min_score": _NUMBER, "retriever": (str,)}),
    StepKind.RERANK: ({}, {"query": (str,), "scorer": (str,), "top_k": (int,), "min_score": _NUMBER}),
}


def check_parameters(kind: StepKind, parameters: Mapping[str, Any]) -> str:
    """Return what is wrong with a step's parameters; empty when nothing is."""
    needed, optional = PARAMETERS[kind]
    known = {**needed, **optional}
    for name in needed:
        if name not in parameters:
            return f"needs the parameter {name!r}"
    for name, value in parameters.items():
        if name not in known:
            return f"has the parameter {name!r}, which its kind does not take; it takes {', '.join(known) or 'none'}"
        if not isinstance(value, known[name]) or (isinstance(value, bool) and bool not in known[name]):
            return f"has {name!r} of a wrong type: it must be {' or '.join(one.__name__ for one in known[name])}"
        if isinstance(value, int | float) and name in RANGES and not RANGES[name][0] <= value <= RANGES[name][1]:
            return f"has {name!r} out of range: it must be between {RANGES[name][0]:g} and {RANGES[name][1]:g}"
    if parameters.get("retriever", RETRIEVERS[0]) not in RETRIEVERS:
        return f"has a 'retriever' that is not known; there are {', '.join(RETRIEVERS)}"
    tools = parameters.get("tools", [])
    return "" if all(isinstance(tool, str) for tool in tools) else "has 'tools' that are not names"


def tools_of(plan: Plan) -> frozenset[str]:
    """Return the names of the tools that a plan uses."""
    called = {str(step.parameters["tool"]) for step in plan.steps if step.kind == StepKind.TOOL}
    return frozenset(called.union(*(step.parameters.get("tools", ()) for step in plan.steps)))


def dependencies_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return, for each step, the steps that it waits for and works on."""
    if any(step.depends_on for step in plan.steps):
        return {step.name: step.depends_on for step in plan.steps}
    before = [(), *((step.name,) for step in plan.steps)]
    return {step.name: needed for step, needed in zip(plan.steps, before, strict=False)}


def bounded(policy: PlanPolicy, bounds: PlanPolicy) -> PlanPolicy:
    """Return the policy within the service's bounds: the stricter of both."""
    timeouts = [timeout for timeout in (policy.timeout_per_step_s, bounds.timeout_per_step_s) if timeout]
    return PlanPolicy(
        max_steps=min(policy.max_steps, bounds.max_steps),
        allowed_kinds=_both(policy.allowed_kinds, bounds.allowed_kinds),
        custom_kinds=bounds.custom_kinds,
        require_linear=policy.require_linear or bounds.require_linear,
        timeout_per_step_s=min(timeouts) if timeouts else None,
    )


def _both(some: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    if some is None or others is None:
        return others if some is None else some
    return some & others


def retry_of(step: Step, given: RetryPolicy) -> RetryPolicy:
    """Return a step's retry policy; what it leaves unset is the request's."""
    retry = step.retry or given
    return retry if step.max_retries is None else replace(retry, max_retries=step.max_retries)


def check_plan(plan: Plan, bounds: PlanPolicy) -> tuple[Plan, Failure | None]:
    """Return the plan under its bounded policy, and why it cannot run: PLAN_REJECTED or STEP_MISMATCH, else None."""
    asked = plan.policy
    plan = replace(plan, policy=bounded(asked, bounds))
    objection = _objection_to_policy(asked) or _objection(plan)
    if objection:
        return plan, failure_of(ErrorCode.ORCHESTRATION_PLAN_REJECTED, f"the plan is rejected: {objection}")
    mismatch = _mismatch(plan)
    return plan, failure_of(ErrorCode.ORCHESTRATION_STEP_MISMATCH, mismatch) if mismatch else None


def _objection(plan: Plan) -> str:
    names = [step.name for step in plan.steps]
    if len(names) > plan.policy.max_steps:
        return f"it has {len(names)} steps, at most {plan.policy.max_steps} are allowed"
    for step in plan.steps:
        if names.count(step.name) > 1:
            return f"step {step.name!r} is named more than once"
        if wrong := _objection_to(step, names, plan.policy):
            return f"step {step.name!r} {wrong}"
    needed = dependencies_of(plan)
    if cycle := _cycle(needed):
        return f"its steps wait for each other: {' -> '.join(cycle)}"
    late = next((name for name in names if any(names.index(one) > names.index(name) for one in needed[name])), None)
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
    is_custom = step.kind in policy.custom_kinds
    if not is_custom and step.kind not in tuple(StepKind):
        return (
            f"is of kind {str(step.kind)!r}, which is not known: {', '.join((*StepKind, *sorted(policy.custom_kinds)))}"
        )
    if policy.allowed_kinds is not None and step.kind not in policy.allowed_kinds:
        return f"is of kind {str(step.kind)!r}, which is not allowed"
    unknown = next((name for name in step.depends_on if name not in names), None)
    if unknown is not None:
        return f"depends on {unknown!r}, which is not a step"
    if wrong := _objection_to_limits(step):
        return wrong
    return "" if is_custom else check_parameters(StepKind(step.kind), step.parameters)


def _objection_to_limits(step: Step) -> str:
    if step.max_retries is not None and not 0 <= step.max_retries <= MAX_RETRIES:
        return f"has max_retries {step.max_retries}: it must be between 0 and {MAX_RETRIES}"
    if step.retry is not None and (wrong := step.retry.objection):
        return f"has an invalid retry policy: {wrong}"
    if step.timeout_s is not None and not 0 < step.timeout_s <= MAX_STEP_TIMEOUT_S:
        return f"has a timeout of {step.timeout_s:g} s: {_TIMEOUT_RANGE}"
    if not step.output.is_empty and step.kind not in CHECKED:
        return f"is of kind {step.kind}, whose output no contract can bind"
    if step.input is not None and step.input.kind is ValueKind.MESSAGES:
        try:
            check_turn(step.input.messages)
        except InvalidRequest as error:
            return f"has input.messages that are no turn: {error}"
    return ""


def _cycle(dependencies: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return steps each of which waits for the next; empty when there are none (Kahn)."""
    left = dict(dependencies)
    while free := [name for name, needed in left.items() if not any(one in left for one in needed)]:
        for one in free:
            del left[one]
    path: list[str] = []
    name: str | None = next(iter(left), None)
    while name is not None and name not in path:
        path.append(name)
        name = next(one for one in left[name] if one in left)
    return [*path[path.index(name) :], name] if name is not None else []


def _mismatch(plan: Plan) -> str:
    """Return the first wrong pairing of steps, naming both; empty when all fit."""
    dependencies = dependencies_of(plan)
    steps = {step.name: step for step in plan.steps}
    gives: dict[str, ValueKind] = {}
    waiting = list(steps)
    while waiting:
        name = waiting.pop(0)
        step, needed = steps[name], dependencies[name]
        if any(one not in gives for one in needed):
            waiting.append(name)
            continue
        if step.input is not None:
            taken = {"its input": step.input.kind}
        elif needed:
            taken = {f"step {one!r}, which gives": gives[one] for one in needed}
        else:
            taken = {"the request, which gives": ValueKind.TEXT}
        for source, value_kind in taken.items():
            if value_kind not in takes_of(step.kind):
                return f"step {name!r} ({step.kind}) cannot work on {source} {value_kind}"
        if len(taken) > 1 and step.kind in SINGLE:
            return f"step {name!r} ({step.kind}) works on one value, and waits for {', '.join(map(repr, needed))}"
        gives[name] = gives_of(step.kind, next(iter(taken.values())))
    return ""
