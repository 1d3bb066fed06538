"""Exposes the tools of the deployment as tools of the server: their definitions, and calls as one-step plans.

A plan that runs a tool is an ordinary execution: it is admitted, recorded, subject to budgets and policies, and
cancelled when its caller leaves.
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
# Names of registered tools contain no dot, so a name with this prefix is never taken.
CLASH_PREFIX = "deployment."
_READ_ONLY = (message_pb2.TOOL_SAFETY_NONE, message_pb2.TOOL_SAFETY_READ)
_UNKNOWN_REACH = (message_pb2.TOOL_SAFETY_EXTERNAL, message_pb2.TOOL_SAFETY_UNSPECIFIED)


def offered_tools(definitions: Iterable[message_pb2.ToolDefinition], taken: frozenset[str]) -> list[Tool]:
    """Return the tools in the form for clients. A tool whose name is taken gets a prefix."""
    return [_define(definition, taken) for definition in definitions]


def registered_name(offered: str) -> str:
    """Return the registered name of an offered tool."""
    return offered.removeprefix(CLASH_PREFIX)


def tool_call_request(name: str, arguments: Mapping[str, Any], request_id: str) -> execution_pb2.SystemRequest:
    """Return the PLAN request that runs a registered tool once."""
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
    """Return the schema of the arguments as an object schema, because clients reject a list with any other schema."""
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
