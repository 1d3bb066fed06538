"""Starts a run with the configured guards, and then with the plan or with PREPARE."""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.core.execution.commands import Prepare
from services.orchestrator.core.execution.ending import move
from services.orchestrator.core.execution.inputs import InputChecked
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.phases.planning import start_plan
from services.orchestrator.core.execution.run import Outcome, Run
from services.orchestrator.core.guards.texts import with_texts
from services.orchestrator.core.model.request import Mode


def begin_work(run: Run) -> Outcome:
    """Start with the plan in mode PLAN, or otherwise with PREPARE."""
    if run.request.mode is Mode.PLAN:
        return start_plan(run)
    return move(run, State.PREPARE, "no plan is needed", Prepare())


def after_checking(run: Run, checked: InputChecked) -> Outcome:
    """Start the work on the request, with the texts that the guards redacted."""
    request = run.request
    if checked.texts:
        request = with_texts(request, iter(checked.texts))
    return begin_work(replace(run, request=request, warnings=checked.warnings))
