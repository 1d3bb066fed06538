"""The schemas of forms, answers and messages, as components of the document. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor
from pydantic.json_schema import models_json_schema

from gateway.http.bodies import SCHEMAS
from gateway.http.document.messages import message_schemas
from gateway.http.document.operations import Shape


def component_schemas(shapes: Iterable[Shape]) -> dict[str, Any]:
    """Return the schemas of shapes and of the shapes inside them, by their names."""
    every = list(dict.fromkeys(shapes))
    messages = [shape for shape in every if isinstance(shape, Descriptor)]
    models = [shape for shape in every if not isinstance(shape, Descriptor)]
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=SCHEMAS + "{model}")
    return {**schemas.get("$defs", {}), **message_schemas(messages)}


def reference_to(shape: Shape) -> dict[str, Any]:
    """Return the reference to the schema of a shape."""
    name = shape.full_name if isinstance(shape, Descriptor) else shape.__name__
    return {"$ref": SCHEMAS + name}
