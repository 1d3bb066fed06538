"""Converts the contents of results and the entries of lists from servers. Callers limit the size of the texts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from mcp import types

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.servers import OfferedTool, Prompt, PromptArgument, Resource, ResourceContents, ToolHints


def tool_of(tool: types.Tool) -> OfferedTool:
    """Decode a tool. If the description is missing, a title replaces it."""
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
    """Decode a resource. A negative size is treated as missing."""
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


def text_of_result(result: types.CallToolResult) -> str:
    """Return the blocks of a result as paragraphs. Structured content is added if no block is text."""
    parts = [text_of_block(block) for block in result.content]
    has_text = any(isinstance(block, types.TextContent) for block in result.content)
    if result.structured_content is not None and not has_text:
        parts.append(dump_json(result.structured_content))
    return "\n\n".join(parts)


def text_of_block(block: types.ContentBlock) -> str:
    """Return text as it is, a link as JSON, and any other content as a description."""
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type}: {block.mime_type}, {_size_of(block.data)} bytes]"
        case types.ResourceLink():
            return dump_json(_link_of(block))
        case types.EmbeddedResource():
            return _text_of_resource(block.resource)


def _link_of(link: types.ResourceLink) -> dict[str, Any]:
    fields = {
        "type": "resource_link",
        "uri": str(link.uri),
        "name": link.name,
        "title": link.title,
        "description": link.description,
        "mime_type": link.mime_type,
        "size": link.size,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _text_of_resource(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    kind = resource.mime_type or "unknown type"
    if isinstance(resource, types.TextResourceContents):
        return f"[resource: {resource.uri}, {kind}]\n{resource.text}"
    return f"[resource: {resource.uri}, {kind}, {_size_of(resource.blob)} bytes]"


def _size_of(base64_text: str) -> int:
    return len(base64_text) * 3 // 4 - base64_text[-2:].count("=")


def contents_of(
    resources: Iterable[types.TextResourceContents | types.BlobResourceContents],
) -> tuple[ResourceContents, ...]:
    """Return the contents of resources. Raises InvalidRequest if a blob is not base64."""
    return tuple(
        ResourceContents(uri=str(resource.uri), mime_type=resource.mime_type or "", data=_data_of(resource))
        for resource in resources
    )


def _data_of(resource: types.TextResourceContents | types.BlobResourceContents) -> str | bytes:
    if isinstance(resource, types.TextResourceContents):
        return resource.text
    try:
        return base64.b64decode(resource.blob, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"resource {str(resource.uri)[:200]!r} has data that is not base64") from None
