"""Converts result contents and list entries from servers. Callers limit the size of the texts."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any

from mcp import types

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.servers import OfferedTool, Prompt, PromptArgument, Resource, ResourceContents, ToolHints

# Base64, alone or in a data URL. A shorter text may be a word.
_DATA = re.compile(
    r"(?:data:(?P<mime_type>[\w.+-]+/[\w.+-]+)(?:;[\w=.-]+){0,4}?;base64,|(?<![A-Za-z0-9+/]))"
    r"(?P<data>[A-Za-z0-9+/]{64,}={0,2})"
)


def tool_of(tool: types.Tool) -> OfferedTool:
    """Decode a tool. A title replaces a missing description."""
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
    """Return the blocks of a result as paragraphs. Structured content is added if no block is text.

    Texts and structured content may repeat the data of a block; the description of the block replaces these
    repetitions. Structured content without anything else is left out.
    """
    described = _Described(result.content)
    parts = [described.in_text(text_of_block(block)) for block in result.content]
    has_text = any(isinstance(block, types.TextContent) for block in result.content)
    if result.structured_content is not None and not has_text:
        structured = described.in_value(result.structured_content)
        if not described.says_all(structured):
            parts.append(dump_json(structured))
    return "\n\n".join(parts)


def text_of_block(block: types.ContentBlock) -> str:
    """Return a text unchanged, a link as JSON, and any other content as a description."""
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return _describe(block.type, block.mime_type, block.data)
        case types.ResourceLink():
            return dump_json(_link_of(block))
        case types.EmbeddedResource():
            return _text_of_resource(block.resource)


class _Described:
    """The descriptions of a result's binary data, used to replace the data in texts and JSON."""

    def __init__(self, blocks: Iterable[types.ContentBlock]) -> None:
        self._descriptions: dict[str, str] = {}
        for block in blocks:
            if isinstance(block, types.ImageContent | types.AudioContent):
                self._descriptions[block.data] = text_of_block(block)
            elif isinstance(block, types.EmbeddedResource) and isinstance(block.resource, types.BlobResourceContents):
                self._descriptions[block.resource.blob] = text_of_block(block)
        self._descriptions.pop("", None)
        self._texts = frozenset(self._descriptions.values())

    def in_text(self, text: str) -> str:
        """Replace every occurrence of the data of blocks in a text by the descriptions of the blocks."""
        return _DATA.sub(lambda run: self._descriptions.get(run["data"], run[0]), text)

    def in_value(self, value: Any) -> Any:
        """Replace blocks, their data and data URLs by descriptions at any depth of a JSON value."""
        if isinstance(value, str):
            return self._descriptions.get(value) or _DATA.sub(self._description_of, value)
        if isinstance(value, list):
            return [self.in_value(item) for item in value]
        if isinstance(value, dict):
            return self._in_object(value)
        return value

    def _in_object(self, value: dict[str, Any]) -> Any:
        match value:
            case {"type": "image" | "audio" as kind, "data": str(data), "mimeType": str(mime_type)}:
                return self._descriptions.get(data) or _describe(kind, mime_type, data)
            case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)} as resource} | (
                {"uri": str(uri), "blob": str(blob)} as resource
            ):
                return self._descriptions.get(blob) or _describe_blob(uri, resource.get("mimeType"), blob)
        return {name: self.in_value(item) for name, item in value.items()}

    def _description_of(self, run: re.Match[str]) -> str:
        unknown = run[0] if run["mime_type"] is None else _describe("data", run["mime_type"], run["data"])
        return self._descriptions.get(run["data"], unknown)

    def says_all(self, value: Any) -> bool:
        """Return whether a JSON value contains descriptions of blocks and nothing else."""
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return bool(value) and all(map(self.says_all, value))
        return isinstance(value, str) and value in self._texts


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
    if isinstance(resource, types.TextResourceContents):
        return f"[resource: {resource.uri}, {resource.mime_type or 'unknown type'}]\n{resource.text}"
    return _describe_blob(str(resource.uri), resource.mime_type, resource.blob)


def _describe_blob(uri: str, mime_type: Any, blob: str) -> str:
    return f"[resource: {uri}, {mime_type or 'unknown type'}, {_size_of(blob)} bytes]"


def _describe(kind: str, mime_type: str, data: str) -> str:
    return f"[{kind}: {mime_type}, {_size_of(data)} bytes]"


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
