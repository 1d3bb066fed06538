"""Maps each input of a run to the handler that processes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from services.orchestrator.core.execution.ending import fail
from services.orchestrator.core.execution.inputs import (
    Decided,
    Enforced,
    Failed,
    Inferred,
    Input,
    InputChecked,
    Planned,
    PlanRan,
    Sampled,
    ToolsRan,
)
from services.orchestrator.core.execution.phases.deciding import after_deciding
from services.orchestrator.core.execution.phases.enforcement import after_enforcement
from services.orchestrator.core.execution.phases.inference import after_inference, after_tools
from services.orchestrator.core.execution.phases.planning import after_plan, after_planning
from services.orchestrator.core.execution.phases.preparing import after_preparing
from services.orchestrator.core.execution.phases.starting import after_checking
from services.orchestrator.core.execution.phases.voting import after_merging, after_sampling
from services.orchestrator.core.execution.run import Outcome, Run
from services.orchestrator.core.model.prepared import Prepared


def _after_enforcing(run: Run, enforced: Enforced) -> Outcome:
    if run.count is not None:
        return after_merging(run, enforced)
    return after_enforcement(run, enforced)


def _after_failing(run: Run, failed: Failed) -> Outcome:
    return fail(_with_partial_results(run, failed), failed.failure)


def _with_partial_results(run: Run, failed: Failed) -> Run:
    """Return the run with the partial results of a failed command."""
    run = replace(
        run,
        records=(*run.records, *failed.records),
        results=(*run.results, *failed.results),
        replicas=run.replicas or failed.replicas,
    )
    output = failed.output
    if output is None:
        return run
    run = replace(run, model=output.model or run.model)
    if output.content or output.reasoning:
        return replace(run, streamed=output)
    return run


HANDLERS: Mapping[type[Input], Callable[[Run, Any], Outcome]] = MappingProxyType(
    {
        InputChecked: after_checking,
        Planned: after_planning,
        Prepared: after_preparing,
        Inferred: after_inference,
        ToolsRan: after_tools,
        Enforced: _after_enforcing,
        Sampled: after_sampling,
        Decided: after_deciding,
        PlanRan: after_plan,
        Failed: _after_failing,
    }
)
