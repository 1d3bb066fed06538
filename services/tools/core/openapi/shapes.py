"""Determines the values that a schema describes. A shape is a schema or a part of a composed schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from services.tools.core.openapi.references import References, Unusable

COMPOSITIONS = ("allOf", "anyOf", "oneOf")
MAX_SHAPES = 256
_MAX_TYPES = 7  # the number of types in JSON Schema
_FILE_FORMATS = ("binary", "byte")

Shape = Mapping[str, Any]


def shapes_of(schema: Any, references: References) -> Iterator[Shape]:
    """Yield a schema, the schemas that compose it, and reference targets, each target once. Raises Unusable."""
    followed: set[str] = set()
    waiting = [schema]
    for _ in range(MAX_SHAPES):
        if not waiting:
            return
        references.budget.spend(1)
        shape = waiting.pop()
        if not isinstance(shape, dict):
            continue
        yield shape
        reference = shape.get("$ref")
        if reference is not None and str(reference) not in followed:
            followed.add(str(reference))
            waiting.append(references.find(reference))
        for keyword in COMPOSITIONS:
            composed = shape.get(keyword)
            if isinstance(composed, list):
                references.budget.spend(len(composed))
                waiting += composed
    raise Unusable(f"its schema is composed of more than {MAX_SHAPES} parts")


def single_shapes_of(schema: Any, references: References) -> Iterator[Shape]:
    """Yield the shapes of a schema. A list is replaced by the shapes of its items. Raises Unusable."""
    for shape in shapes_of(schema, references):
        if is_list(shape):
            yield from shapes_of(shape.get("items"), references)
        else:
            yield shape


def declares_nested_values(shapes: Collection[Shape], references: References) -> bool:
    """Return whether shapes describe a list or an object inside another one. Raises Unusable."""
    inner_schemas = (schema for shape in shapes for schema in _inner_schemas_of(shape))
    return any(is_container(inner) for schema in inner_schemas for inner in shapes_of(schema, references))


def _inner_schemas_of(shape: Shape) -> Iterator[Any]:
    """Yield the schemas of a list's items and of an object's values."""
    named, listed = shape.get("properties"), shape.get("prefixItems")
    yield shape.get("items")
    yield shape.get("additionalProperties")
    yield from named.values() if isinstance(named, dict) else ()
    yield from listed if isinstance(listed, list) else ()


def is_file(shape: Shape) -> bool:
    """Return whether a shape describes the content of a file."""
    return shape.get("format") in _FILE_FORMATS or "contentMediaType" in shape or "contentEncoding" in shape


def is_container(shape: Shape) -> bool:
    """Return whether a shape describes lists or objects."""
    return is_list(shape) or has_type(shape, "object") or isinstance(shape.get("properties"), dict)


def is_list(shape: Shape) -> bool:
    """Return whether a shape describes lists."""
    return has_type(shape, "array") or "items" in shape or "prefixItems" in shape


def has_type(shape: Shape, name: str) -> bool:
    """Return whether a shape declares a type, alone or among other types."""
    kind = shape.get("type")
    return kind == name or (isinstance(kind, list) and name in kind[:_MAX_TYPES])
