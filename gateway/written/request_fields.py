"""Converts fields of a SystemRequest from the forms that people write to proto JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.written.errors import WrittenError
from pagantic_common.domain.text.json_text import dump_json


def merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared fields overridden by the own fields. Objects are merged, and other values are replaced."""
    joined = dict(shared)
    for name, value in own.items():
        below = joined.get(name)
        joined[name] = value
        if isinstance(below, dict) and isinstance(value, dict):
            joined[name] = merged(below, value)
    return joined


def expand(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return proto JSON for fields that may use the short forms of mode, schema, system, context and JSON texts."""
    expanded = {name: _with_json_texts(name, value) for name, value in fields.items()}
    mode = expanded.get("mode")
    if isinstance(mode, str) and not mode.startswith("MODE_"):
        expanded["mode"] = f"MODE_{mode.upper()}"
    if "schema" in expanded:
        schema_json = dump_json(expanded.pop("schema"))
        expanded["output"] = {**_object(expanded.get("output", {}), "output"), "schema_json": schema_json}
    if "system" in expanded:
        expanded["prompt"] = {"text": expanded.pop("system")}
    if isinstance(expanded.get("context"), str):
        expanded["context"] = {"collection": expanded["context"]}
    return expanded


def _with_json_texts(name: str, value: Any) -> Any:
    """Return a value whose `*_json` fields contain JSON texts."""
    if name == "schema":
        return value
    if name.endswith("_json") and not isinstance(value, str):
        return dump_json(value)
    if isinstance(value, dict):
        return {inner: _with_json_texts(inner, part) for inner, part in value.items()}
    if isinstance(value, list):
        return [_with_json_texts("", part) for part in value]
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WrittenError(f"{name} is not a mapping")
    return value
