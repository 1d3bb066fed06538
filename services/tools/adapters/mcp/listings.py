"""Decodes the lists of servers to the domain. Texts are the server's own; their users must limit them."""

from __future__ import annotations

from mcp import types

from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.servers import OfferedTool, Prompt, PromptArgument, Resource, ToolHints


def tool_of(tool: types.Tool) -> OfferedTool:
    """Decode a tool; a title stands in for a missing description."""
    annotations = tool.annotations or types.ToolAnnotations()
    return OfferedTool(
        name=tool.name,
        description=tool.description or tool.title or annotations.title or "",
        parameters_json=dump_json(tool.input_schema),
        hints=ToolHints(
            is_read_only=annotations.read_only_hint is True,
            is_destructive=annotations.destructive_hint is not False,
            is_idempotent=annotations.idempotent_hint is True,
            is_open_world=annotations.open_world_hint is not False,
        ),
    )


def resource_of(resource: types.Resource) -> Resource:
    """Decode a resource; a negative size counts as missing."""
    size_bytes = resource.size
    if size_bytes is not None and size_bytes < 0:
        size_bytes = None
    return Resource(
        uri=str(resource.uri),
        name=resource.name,
        title=resource.title or "",
        description=resource.description or "",
        mime_type=resource.mime_type or "",
        size_bytes=size_bytes,
    )


def prompt_of(prompt: types.Prompt) -> Prompt:
    """Decode a prompt."""
    arguments = tuple(
        PromptArgument(argument.name, argument.description or "", is_required=bool(argument.required))
        for argument in prompt.arguments or ()
    )
    return Prompt(prompt.name, prompt.title or "", prompt.description or "", arguments)
