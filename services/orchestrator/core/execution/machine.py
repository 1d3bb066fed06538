"""One execution as a pure machine: an input goes in, the next command comes out.

Theory of operation. `step(run, input)` returns the run after the input and the lifecycle transitions that it made.
The run has one outstanding command, which the app carries out; its result comes back as the next input. Nothing here
waits, calls or draws. The handlers of the inputs are in `phases`.

Invariants:
    1. Every transition is in the lifecycle's table.
    2. A live run has one outstanding command and takes its answer (`ANSWER_OF`) or Failed; a terminal run has Finish
       and takes no input.
    3. Tool calls that ran are in `records`, in order, whatever happens later; none runs twice.
    4. A response with no failure satisfies its schema, or says PARTIAL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from services.orchestrator.core.execution.commands import ANSWER_OF, Prepare, RunPlan
from services.orchestrator.core.execution.ending import fail, move
from services.orchestrator.core.execution.inputs import (
    Enforced,
    Failed,
    Inferred,
    Input,
    Planned,
    PlanRan,
    Sampled,
    ToolsRan,
    usage_of,
)
from services.orchestrator.core.execution.lifecycle import IllegalInputError, State
from services.orchestrator.core.execution.phases.asking import infer
from services.orchestrator.core.execution.phases.enforcement import after_enforcement
from services.orchestrator.core.execution.phases.inference import after_inference, after_tools
from services.orchestrator.core.execution.phases.planning import after_plan, after_planning, start_plan
from services.orchestrator.core.execution.phases.voting import after_merging, after_sampling, sample
from services.orchestrator.core.execution.run import Outcome, Run, Transition
from services.orchestrator.core.model.plan import PlanPolicy
from services.orchestrator.core.model.prepared import Prepared
from services.orchestrator.core.model.request import Mode, Request


def start(request: Request, bounds: PlanPolicy | None = None) -> Outcome:
    """Begin an admitted request; a plan is checked under `bounds`."""
    admitted = Transition(None, State.INIT, 1, "request admitted")
    if request.mode is Mode.PLAN:
        outcome = start_plan(Run(request=request, bounds=bounds or PlanPolicy()))
    else:
        outcome = move(Run(request=request), State.PREPARE, "no plan is needed", Prepare())
    return replace(outcome, transitions=(admitted, *outcome.transitions))


def step(run: Run, happened: Input) -> Outcome:
    """Take an input; raises IllegalInputError for an input that does not answer the outstanding command."""
    _check_answer(run, happened)
    run = replace(run, usage=run.usage + usage_of(happened))
    return _HANDLERS[type(happened)](run, happened)


def _check_answer(run: Run, happened: Input) -> None:
    answer = ANSWER_OF.get(type(run.outstanding))  # type: ignore[arg-type]  # None has no answer
    if answer is None or not isinstance(happened, answer | Failed):
        asked, given = type(run.outstanding).__name__, type(happened).__name__
        raise IllegalInputError(f"{given} does not answer {asked} in {run.state}")


def _after_preparing(run: Run, prepared: Prepared) -> Outcome:
    run = replace(run, prepared=prepared, is_in_tool_phase=bool(prepared.tools))
    if run.request.mode is Mode.REDUNDANT:
        return move(run, State.EXECUTE, "prepared", sample(run))
    if run.plan is not None:
        return move(run, State.EXECUTE, "prepared", RunPlan(run.plan))
    return move(run, State.EXECUTE, "prepared", infer(run))


def _after_enforcing(run: Run, enforced: Enforced) -> Outcome:
    if run.count is not None:
        return after_merging(run, enforced)
    return after_enforcement(run, enforced)


def _after_failing(run: Run, failed: Failed) -> Outcome:
    return fail(_with_partial_results(run, failed), failed.failure)


def _with_partial_results(run: Run, failed: Failed) -> Run:
    """Keep the partial results of a failed command."""
    run = replace(
        run,
        records=(*run.records, *failed.records),
        results=(*run.results, *failed.results),
        replicas=run.replicas or failed.replicas,
    )
    said = failed.output
    if said is None:
        return run
    run = replace(run, model=said.model or run.model)
    if said.content or said.reasoning:
        return replace(run, streamed=said)
    return run


_HANDLERS: Mapping[type[Input], Callable[[Run, Any], Outcome]] = MappingProxyType(
    {
        Planned: after_planning,
        Prepared: _after_preparing,
        Inferred: after_inference,
        ToolsRan: after_tools,
        Enforced: _after_enforcing,
        Sampled: after_sampling,
        PlanRan: after_plan,
        Failed: _after_failing,
    }
)
