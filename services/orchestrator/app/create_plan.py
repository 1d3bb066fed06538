"""Implements CreatePlan, which makes the plan of a request without running it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from pagantic_common.domain.deadline import Deadline
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    InvalidRequest,
    PaganticError,
    PreconditionFailed,
    Unsupported,
)
from pagantic_common.telemetry.scope import current_deadline, work_scope
from services.orchestrator.app.effects.planning import plan_of, planner_command
from services.orchestrator.app.failures import error_from
from services.orchestrator.app.recording.recorder import total_of
from services.orchestrator.app.running.environment import Environment, time_limits
from services.orchestrator.app.running.registry import Registry
from services.orchestrator.app.services import Generate
from services.orchestrator.core.guards.rules import guards_request
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.request_check import check_request
from services.orchestrator.core.model.response import FinishReason, InferenceDelta, InferenceOutput
from services.orchestrator.core.plans.checking import accept_plan
from services.orchestrator.core.plans.planning import Planner, made_at, static_plan


async def create_plan(request: Request, size_bytes: int, environment: Environment, registry: Registry) -> Plan:
    """Return the checked plan that a PLAN request would run.

    Raises InvalidRequest if the envelope is malformed or has another mode, PreconditionFailed if the plan is rejected,
    and the errors of the services that the planner calls, with a code.
    """
    check_request(request)
    if request.mode is not Mode.PLAN:
        raise InvalidRequest(f"mode {request.mode} has no plan: use PLAN")
    request = environment.services.experiments.place(request)
    limits = time_limits(request, environment.limits.max_execution_s)
    end = min(current_deadline(), Deadline.after(time.monotonic(), limits.left_s))
    try:
        with registry.counted(request.account, size_bytes), work_scope(deadline=end):
            async with asyncio.timeout(limits.left_s):
                made = await _make_plan(request, environment)
    except TimeoutError:
        raise DeadlineExceeded(failure=limits.failure) from None
    except PaganticError as error:
        raise error_from(error) from None
    plan, failure = accept_plan(request, made, environment.limits.plan_bounds)
    if failure is not None:
        raise PreconditionFailed(failure=failure)
    return plan


async def _make_plan(request: Request, environment: Environment) -> Plan:
    """Return the request's plan, or make a plan. The planner model's usage is recorded even if planning fails."""
    services, now = environment.services, environment.clock.now
    if request.plan is not None:
        return request.plan
    if services.planner is Planner.STATIC:
        return made_at(static_plan(request), now())
    if services.guards is not None and guards_request(services.guards.rules, request.tenant):
        raise Unsupported("guards read what the planner's model gets, in executions alone: send the request to Execute")
    command, planner_request = await planner_command(services, request, environment.limits.plan_bounds)
    output = InferenceOutput("", FinishReason.ERROR)

    async def take(delta: InferenceDelta) -> None:
        nonlocal output
        output = replace(output, usage=delta.usage, model=delta.model)

    try:
        output = await services.do(Generate(planner_request.hints, command), take)
    finally:
        await asyncio.shield(asyncio.ensure_future(_count(request, output, environment)))
    return made_at(plan_of(request, planner_request, output), now())


async def _count(request: Request, output: InferenceOutput, environment: Environment) -> None:
    used = total_of(request, output.usage, output.model, environment.limits.prices)
    if used is not None:
        await environment.journal.add_usage(used)
