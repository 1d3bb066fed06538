"""The tools of the deployment as tools of the server: their definitions, and a call as a plan with a single step.

A plan runs a tool like every execution: admitted, recorded, within budgets and policies, and cancelled with its caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcp_types import Tool, ToolAnnotations

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import plan_request, plan_step
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

STEP = "call"
# Names of registered tools have no dot, so that no other tool has the name that this makes.
CLASH_PREFIX = "deployment."
_READ_ONLY = (message_pb2.TOOL_SAFETY_NONE, message_pb2.TOOL_SAFETY_READ)
_UNKNOWN_REACH = (message_pb2.TOOL_SAFETY_EXTERNAL, message_pb2.TOOL_SAFETY_UNSPECIFIED)


def offered_tools(definitions: Iterable[message_pb2.ToolDefinition], taken: frozenset[str]) -> list[Tool]:
    """Return the tools in their form for clients; a tool with a taken name gets a prefix."""
    return [_define(definition, taken) for definition in definitions]


def registered_name(offered: str) -> str:
    """Return the name under which an offered tool is registered."""
    return offered.removeprefix(CLASH_PREFIX)


def tool_call_request(name: str, arguments: Mapping[str, Any], request_id: str) -> execution_pb2.SystemRequest:
    """Make the PLAN request that runs a registered tool once."""
    step = plan_step(STEP, "tool", tool=name, arguments=dict(arguments))
    return plan_request(f"Run the tool {name}.", [step], tools=[name], request_id=request_id)


def _define(definition: message_pb2.ToolDefinition, taken: frozenset[str]) -> Tool:
    name = definition.name
    if name in taken:
        name = f"{CLASH_PREFIX}{name}"
    return Tool(
        name=name,
        description=definition.description,
        input_schema=_schema_of(definition),
        annotations=_annotate(definition),
    )


def _schema_of(definition: message_pb2.ToolDefinition) -> dict[str, Any]:
    """Return the schema of the arguments; clients refuse a whole list for a single schema that is not an object's."""
    try:
        schema = parse_json(definition.parameters_json or "{}")
    except JsonTextError:
        schema = {}
    if not isinstance(schema, dict):
        schema = {}
    return {**schema, "type": "object"}


def _annotate(definition: message_pb2.ToolDefinition) -> ToolAnnotations:
    is_read_only = definition.safety in _READ_ONLY
    return ToolAnnotations(
        read_only_hint=is_read_only,
        destructive_hint=not is_read_only,
        idempotent_hint=definition.idempotent or is_read_only,
        open_world_hint=definition.safety in _UNKNOWN_REACH,
    )
