"""Finds the tools that a run may call."""

from __future__ import annotations

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PaganticError, PermissionDenied
from pagantic_common.domain.messages import ToolDefinition
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.failures import is_outage
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response_warning import ResponseWarning

Offer = tuple[tuple[ToolDefinition, ...], tuple[ResponseWarning, ...]]


async def plan_tools(request: Request, names: frozenset[str], scope: RunScope) -> tuple[ToolDefinition, ...]:
    """Return the tools that a plan uses. Raises PermissionDenied for one that the request does not name."""
    denied = sorted(names - set(request.tools))
    if request.tools and denied:
        raise PermissionDenied(
            f"the plan uses tool {denied[0]!r}, which is not among the request's tools", code=ErrorCode.TOOL_DENIED
        )
    if not names:
        return ()
    listed = await scope.services.tools.list_tools(sorted(names))
    return tuple(tool.definition for tool in listed)


async def offered_tools(request: Request, scope: RunScope) -> Offer:
    """Return the tools, those of the caller last, and a warning where registered ones cannot be had for now."""
    if not request.may_call_tools:
        return (), ()
    registered, warnings = await _registered_tools(request, scope)
    tools = (*registered, *request.client_tools)
    if tools or not warnings:
        _check_choice(request, {tool.name for tool in tools})
    return tools, warnings


async def _registered_tools(request: Request, scope: RunScope) -> Offer:
    if not request.offers_registered_tools:
        return (), ()
    choice = request.hints.tool_choice
    try:
        listed = await scope.services.tools.list_tools(request.tools)
    except PaganticError as error:
        if request.tools or choice.is_enforced or not is_outage(error):
            raise
        return (), (ResponseWarning("tools_unavailable", f"no tools were offered to the model: {error}"),)
    return tuple(tool.definition for tool in listed if tool.is_available), ()


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
