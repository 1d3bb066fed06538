"""Asks a model for a plan."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.messages import ToolChoice
from services.orchestrator.app.services import Services
from services.orchestrator.core.contract import OutputContract
from services.orchestrator.core.plan import Plan
from services.orchestrator.core.planning import (
    MAX_PLAN_TOKENS,
    PLAN_SCHEMA,
    Planner,
    made_at,
    planned,
    planner_messages,
    static_plan,
)
from services.orchestrator.core.request import Hints, Request
from services.orchestrator.core.response import InferenceOutput
from services.orchestrator.core.run import Infer


async def planner_command(services: Services, request: Request) -> tuple[Infer, Request]:
    """Return the inference that makes a plan, and the request as that inference sees it."""
    contract = OutputContract(schema_json=PLAN_SCHEMA)
    command = Infer(
        messages=planner_messages(request),
        tools=(),
        tool_choice=ToolChoice(),
        engine_text=(await services.constraint.compile(contract)).engine_text,
        seed=request.hints.seed,
        is_streamed=False,
    )
    hints = Hints(max_tokens=MAX_PLAN_TOKENS, temperature=request.hints.temperature, model=request.hints.model)
    return command, replace(request, output=contract, hints=hints)


async def create_plan(services: Services, request: Request, clock: Clock) -> Plan:
    """Return the request's plan, or else the planner's."""
    if request.plan is not None:
        return request.plan
    if services.planner is Planner.STATIC:
        return made_at(static_plan(request), clock.now())
    command, asked = await planner_command(services, request)
    texts = ""
    async with aclosing(services.inference.infer(command, asked.hints)) as pieces:
        async for piece in pieces:
            texts = piece.content if isinstance(piece, InferenceOutput) else texts
    return made_at(planned(request, texts), clock.now())
