"""Asks a model for a plan."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.messages import ToolChoice, ToolDefinition
from services.orchestrator.app.services import Services
from services.orchestrator.core.contract import OutputContract
from services.orchestrator.core.model_planning import MAX_PLAN_TOKENS, plan_schema, planned, planner_messages
from services.orchestrator.core.plan import Plan
from services.orchestrator.core.planning import Planner, made_at, static_plan
from services.orchestrator.core.request import Hints, Request
from services.orchestrator.core.response import InferenceOutput
from services.orchestrator.core.run import Infer


async def planner_command(services: Services, request: Request) -> tuple[Infer, Request]:
    """Return the inference that makes a plan, and the request as that inference sees it."""
    tools = await _tools_for(services, request)
    contract = OutputContract(schema_json=plan_schema(request, tools))
    command = Infer(
        messages=planner_messages(request, tools),
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
    text = ""
    async with aclosing(services.inference.infer(command, asked.hints)) as pieces:
        async for piece in pieces:
            text = piece.content if isinstance(piece, InferenceOutput) else text
    return made_at(planned(request, text), clock.now())


async def _tools_for(services: Services, request: Request) -> tuple[ToolDefinition, ...]:
    """Return the tools that a plan may use: those that the request names, or else all; none while they are away."""
    try:
        listed = await services.tools.list_tools(request.tools)
    except Unavailable:
        if request.tools:
            raise
        return ()
    return tuple(tool.definition for tool in listed if tool.is_available)
