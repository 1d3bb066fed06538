"""Asks a model for a plan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import InvalidRequest, Unavailable
from pagantic_common.domain.messages import ToolChoice, ToolDefinition
from services.orchestrator.app.services import Services
from services.orchestrator.core.contract import OutputContract
from services.orchestrator.core.model_planning import MAX_PLAN_TOKENS, plan_schema, planned, planner_messages
from services.orchestrator.core.plan import Plan, PlanPolicy
from services.orchestrator.core.planning import Planner, made_at, static_plan
from services.orchestrator.core.request import Request, side_hints
from services.orchestrator.core.response import FinishReason, InferenceOutput
from services.orchestrator.core.run import Infer
from services.orchestrator.core.truncation import truncation_of


async def planner_command(services: Services, request: Request, bounds: PlanPolicy) -> tuple[Infer, Request]:
    """Return the inference that makes a plan, and the request as that inference sees it."""
    tools = await _tools_for(services, request)
    contract = OutputContract(schema_json=plan_schema(request, tools, bounds))
    command = Infer(
        messages=planner_messages(request, tools, bounds),
        tools=(),
        tool_choice=ToolChoice(),
        engine_text=(await services.constraint.compile(contract)).engine_text,
        seed=request.hints.seed,
        is_streamed=False,
    )
    hints = replace(side_hints(request.hints), max_tokens=MAX_PLAN_TOKENS, temperature=request.hints.temperature)
    return command, replace(request, output=contract, hints=hints)


def plan_of(request: Request, asked: Request, output: InferenceOutput) -> Plan:
    """Return the plan that the planner's output holds; raises PaganticError for one that is cut or no plan."""
    if output.finish_reason is FinishReason.LENGTH:
        raise InvalidRequest(failure=truncation_of(asked, output))
    return planned(request, output.content)


async def create_plan(
    services: Services,
    request: Request,
    clock: Clock,
    bounds: PlanPolicy,
    count: Callable[[InferenceOutput], Awaitable[None]],
) -> Plan:
    """Return the request's plan, or else the planner's; `count` is told what the planner used, also when it failed."""
    if request.plan is not None:
        return request.plan
    if services.planner is Planner.STATIC:
        return made_at(static_plan(request), clock.now())
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
    return made_at(plan_of(request, asked, output), clock.now())


async def _tools_for(services: Services, request: Request) -> tuple[ToolDefinition, ...]:
    """Return the tools that a plan may use: those that the request names, or else all; none while they are away."""
    try:
        listed = await services.tools.list_tools(request.tools)
    except Unavailable:
        if request.tools:
            raise
        return ()
    return tuple(tool.definition for tool in listed if tool.is_available)
