"""The command that lists the tools of a deployment."""

from __future__ import annotations

from gateway.cli import options
from gateway.cli.output import note, print_json, reporting_errors, show
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import approval_pb2, orchestrator_service_pb2
from pagantic_common.client import Client
from pagantic_common.client.tables import cell, list_table
from pagantic_common.codec.fields import name_of

_NAMED_ONLY = (message_pb2.TOOL_SAFETY_WRITE, message_pb2.TOOL_SAFETY_EXTERNAL)


def tools(
    *,
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List the tools that a request may name with --tool."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        listed = client.list_tools()
    if as_json:
        print_json(orchestrator_service_pb2.ListToolsResponse(tools=listed))
        return
    table = list_table(("name", "safety", "calls", "available", "description"))
    for tool in listed:
        definition = tool.definition
        safety = name_of(message_pb2.ToolSafety, definition.safety, "TOOL_SAFETY_").lower()
        action = name_of(approval_pb2.ToolAction, tool.action, "TOOL_ACTION_").lower()
        if _needs_name(tool):
            action += " if named"
        available = "yes"
        if not tool.available:
            available = f"no: {tool.unavailable_reason}"
        table.add_row(*map(cell, (definition.name, safety, action, available, definition.description)))
    show(table)
    if any(map(_needs_name, listed)):
        note("named: a model gets such a tool where --tool, the request or a rule of the deployment's policy names it")


def _needs_name(tool: orchestrator_service_pb2.CallableTool) -> bool:
    """Return whether only requests that name this tool can use it.

    Tools whose action is to ask are excluded, because a rule sets that action.
    """
    return tool.action == approval_pb2.TOOL_ACTION_ALLOW and tool.definition.safety in _NAMED_ONLY
