"""Makes the plan of a request without running it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from services.orchestrator.app.effects.planning import plan_of, planner_command
from services.orchestrator.app.services import Services
from services.orchestrator.core.model.plan import Plan, PlanPolicy
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.plans.planning import Planner, made_at, static_plan


async def create_plan(
    services: Services,
    request: Request,
    bounds: PlanPolicy,
    now: Callable[[], datetime],
    count: Callable[[InferenceOutput], Awaitable[None]],
) -> Plan:
    """Return the request's plan, or else the planner's; `count` is told what the planner used, also when it failed."""
    if request.plan is not None:
        return request.plan
    if services.planner is Planner.STATIC:
        return made_at(static_plan(request), now())
    command, asked = await planner_command(services, request, bounds)
    output = InferenceOutput("", FinishReason.ERROR)
    try:
        async with aclosing(services.inference.infer(command, asked.hints)) as pieces:
            async for piece in pieces:
                if isinstance(piece, InferenceOutput):
                    output = piece
                else:
                    output = replace(output, usage=piece.usage, model=piece.model)
    finally:
        await asyncio.shield(asyncio.ensure_future(count(output)))
    return made_at(plan_of(request, asked, output), now())
