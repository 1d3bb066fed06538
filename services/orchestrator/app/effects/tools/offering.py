"""Finds the tools that a run may call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PaganticError, PermissionDenied
from pagantic_common.domain.messages import Message, ToolDefinition
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import is_outage
from services.orchestrator.app.services import ListTools, SearchTools
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.tools.policy import (
    MAX_SEARCHED,
    ToolAction,
    ToolPolicies,
    called_names,
    fit_together,
    query_of,
    select,
)
from services.orchestrator.ports.services import OfferedTool

Offer = tuple[tuple[ToolDefinition, ...], tuple[ResponseWarning, ...]]


async def plan_tools(request: Request, names: frozenset[str], scope: RunScope) -> tuple[ToolDefinition, ...]:
    """Return the tools that a plan uses. Raises PermissionDenied if the request does not permit a tool."""
    denied = sorted(names - set(request.tools))
    if request.tools and denied:
        raise PermissionDenied(
            f"the plan uses tool {denied[0]!r}, which is not among the request's tools", code=ErrorCode.TOOL_DENIED
        )
    if not names:
        return ()
    listed = await scope.services.do(ListTools(sorted(names)))
    tools = tuple(tool.definition for tool in listed)
    policies = ToolPolicies(scope.services.tool_policy, request.tool_policy)
    _check_allowed(tools, policies)
    if request.plan is None and not request.tools:
        _check_offered(tools, policies)
    return tools


def _check_offered(tools: Iterable[ToolDefinition], policies: ToolPolicies) -> None:
    """Raise PermissionDenied if a planner may not use a tool that the request does not name."""
    for tool in tools:
        if not policies.is_offered_unnamed(tool):
            raise PermissionDenied(
                f"the planner uses tool {tool.name!r} of class {tool.safety.upper()}: name it in tools, or allow it",
                code=ErrorCode.TOOL_DENIED,
            )


def _check_allowed(tools: Iterable[ToolDefinition], policies: ToolPolicies) -> None:
    """Raise PermissionDenied if a policy denies a tool."""
    for tool in tools:
        if policies.action_for(tool) is ToolAction.DENY:
            raise PermissionDenied(
                f"tool {tool.name!r} is denied by the deployment's policy or by tool_rules: leave it out",
                code=ErrorCode.TOOL_DENIED,
            )


async def offered_tools(request: Request, history: Sequence[Message], scope: RunScope) -> Offer:
    """Return the tools, the caller's tools last, and a warning if registered tools are omitted."""
    if not request.may_call_tools:
        return (), ()
    registered, warnings = await _registered_tools(request, scope)
    max_bytes = scope.services.max_offered_tool_bytes
    if not request.tools and not fit_together(registered, max_bytes):
        selected = await _select(registered, request, history, scope)
        warnings = (*warnings, _selection_warning(len(selected), len(registered), max_bytes))
        registered = selected
    tools = (*registered, *request.client_tools)
    if tools or not warnings:
        _check_choice(request, {tool.name for tool in tools})
    return tools, warnings


async def _registered_tools(request: Request, scope: RunScope) -> Offer:
    if not request.offers_registered_tools:
        return (), ()
    choice = request.hints.tool_choice
    try:
        listed = await scope.services.do(ListTools(request.tools))
    except PaganticError as error:
        if request.tools or choice.is_enforced or not is_outage(error):
            raise
        return (), (ResponseWarning("tools_unavailable", f"no tools were offered to the model: {error}"),)
    policies = ToolPolicies(scope.services.tool_policy, request.tool_policy)
    if not request.tools:
        return _offered_unnamed(policies, tuple(listed)), ()
    _check_allowed((tool.definition for tool in listed), policies)
    return available(listed), ()


@lru_cache(maxsize=8)
def _offered_unnamed(policies: ToolPolicies, listed: tuple[OfferedTool, ...]) -> tuple[ToolDefinition, ...]:
    """Return the tools offered to a request that names no tools. Most requests have the same policies."""
    return tuple(tool for tool in available(listed) if policies.is_offered_unnamed(tool))


def available(listed: Iterable[OfferedTool]) -> tuple[ToolDefinition, ...]:
    """Return the definitions of the currently available tools."""
    return tuple(tool.definition for tool in listed if tool.is_available)


async def _select(
    tools: tuple[ToolDefinition, ...], request: Request, history: Sequence[Message], scope: RunScope
) -> tuple[ToolDefinition, ...]:
    """Return the tools that tool_choice names, that the conversation has called, or that match the request's words."""
    messages = (*history, *request.messages)
    names = [tool.name for tool in tools]
    try:
        matches = await scope.services.do(SearchTools(query_of(messages), names, MAX_SEARCHED))
    except PaganticError as error:
        if not is_outage(error):
            raise
        matches = []
    preferred = dict.fromkeys([request.hints.tool_choice.tool_name, *called_names(messages), *(matches or names)])
    return select(tools, preferred, scope.services.max_offered_tool_bytes)


def _selection_warning(offered: int, count: int, max_bytes: int) -> ResponseWarning:
    text = (
        f"{offered} of {count} tools were offered to the model: the best matches for the request within {max_bytes} "
        "bytes (MAX_OFFERED_TOOL_BYTES); name the tools that matter in `tools`"
    )
    return ResponseWarning("tools_selected", text)


def _check_choice(request: Request, names: set[str]) -> None:
    choice = request.hints.tool_choice
    if choice.is_enforced and not names:
        raise InvalidRequest("tool_choice demands a call, but no tool is available", code=ErrorCode.CONFIG_INVALID)
    if choice.tool_name and choice.tool_name not in names:
        raise InvalidRequest(
            f"tool_choice names {choice.tool_name!r}, which is not an available tool of this request: use "
            "auto, required, none, or a tool's name",
            code=ErrorCode.TOOL_NOT_FOUND,
        )
