"""Writes the parameters of the built-in tools as JSON Schema."""

from __future__ import annotations

from typing import Any

from pagantic_common.domain.text.json_text import dump_json


def object_schema(required: tuple[str, ...], **properties: dict[str, Any]) -> str:
    """Return the schema of an object with exactly these properties."""
    return dump_json(
        {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    )
