"""Runs the steps of a plan, in parallel where the plan permits it."""

from __future__ import annotations

import asyncio
from functools import partial

from services.orchestrator.app.effects.plan_steps.attempts import run_step
from services.orchestrator.app.effects.plan_steps.provenance import provenance_of_plan
from services.orchestrator.app.effects.plan_steps.scope import PlanScope
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.core.conversation.prompt import with_prepared
from services.orchestrator.core.model.plan import StepResult
from services.orchestrator.core.plans.schedule import PlanSchedule
from services.orchestrator.core.turn.plan_steps import PlanRan, RunPlan
from services.orchestrator.core.turn.run import Run


async def run_plan(run: Run, command: RunPlan, scope: RunScope) -> PlanRan:
    """Run all steps. After a failure, no step starts, but running steps finish. Ended steps do not run again."""
    tools = {tool.name: tool for tool in run.prepared.tools}
    request = with_prepared(run.request, run.prepared)
    surroundings = partial(provenance_of_plan, run, command.plan, scope.recorder.progress)
    plan = PlanScope(request, command.plan, tools, scope, surroundings)
    await plan.take_recorded()
    schedule = PlanSchedule(command.plan, plan.take_ended())
    running: set[asyncio.Task[StepResult]] = set()
    try:
        while True:
            for step in schedule.ready():
                running.add(asyncio.create_task(run_step(step, schedule.inputs_of(step), plan)))
                schedule = schedule.started(step)
            if not running:
                break
            with scope.branches.forked():
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                schedule = schedule.ended(task.result())
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
    return PlanRan(schedule.results, plan.progress.records, plan.enforcement, plan.model)
