"""Makes a plan, either by rules or with a model."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import InvalidRequest, PaganticError, Unavailable
from pagantic_common.domain.messages import ToolChoice, ToolDefinition
from services.orchestrator.app.effects.inference.inferring import infer
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.effects.tools.offering import available
from services.orchestrator.app.services import Compile, ListTools, Services
from services.orchestrator.core.execution.events import InferencePurpose
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.plan import Plan, PlanPolicy
from services.orchestrator.core.model.request import Request, side_hints
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.plans.model_planning import MAX_PLAN_TOKENS, plan_schema, planned, planner_messages
from services.orchestrator.core.plans.planning import Planner, made_at, static_plan
from services.orchestrator.core.tools.policy import ToolPolicies
from services.orchestrator.core.turn.answering import Infer
from services.orchestrator.core.turn.ending import truncation_of
from services.orchestrator.core.turn.preparing import MakePlan, Planned
from services.orchestrator.core.turn.run import Run


async def make_plan(run: Run, _command: MakePlan, scope: RunScope) -> Planned:
    """Make the plan of a request with the deployment's planner."""
    if scope.services.planner is Planner.STATIC:
        return Planned(made_at(static_plan(run.request), scope.clock.now()))
    asking, planner_request = await planner_command(scope.services, run.request, run.bounds)
    output = (await infer(replace(run, request=planner_request), asking, scope, InferencePurpose.PLAN)).output
    try:
        plan = plan_of(run.request, planner_request, output)
    except PaganticError:
        scope.inference.lost += output.usage
        raise
    return Planned(made_at(plan, scope.clock.now()), output.usage, output.model)


async def planner_command(services: Services, request: Request, bounds: PlanPolicy) -> tuple[Infer, Request]:
    """Return the inference that makes a plan, and the request adapted for it."""
    tools = await _tools_for(services, request)
    contract = OutputContract(schema_json=plan_schema(request, tools, bounds))
    command = Infer(
        messages=planner_messages(request, tools, bounds),
        tools=(),
        tool_choice=ToolChoice(),
        engine_text=(await services.do(Compile(contract))).engine_text,
        seed=request.hints.seed,
        is_streamed=False,
    )
    hints = replace(side_hints(request.hints), max_tokens=MAX_PLAN_TOKENS, temperature=request.hints.temperature)
    return command, replace(request, output=contract, hints=hints)


def plan_of(request: Request, asked: Request, output: InferenceOutput) -> Plan:
    """Return the plan in the planner's output. Raises PaganticError if the output is truncated or is not a plan."""
    if output.finish_reason is FinishReason.LENGTH:
        raise InvalidRequest(failure=truncation_of(asked, output))
    return planned(request, output.content)


async def _tools_for(services: Services, request: Request) -> tuple[ToolDefinition, ...]:
    """Return the tools that a plan may use: the tools that the request names, or all tools by default.

    If the request names no tools and the service is unavailable, the result is empty.
    """
    try:
        listed = await services.do(ListTools(request.tools))
    except Unavailable:
        if request.tools:
            raise
        return ()
    policies = ToolPolicies(services.tool_policy, request.tool_policy)
    return tuple(tool for tool in available(listed) if tool.name in request.tools or policies.is_offered_unnamed(tool))
