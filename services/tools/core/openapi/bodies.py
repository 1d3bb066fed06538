"""Reads the bodies of operations: JSON, and forms with the properties that a form can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from services.tools.core.openapi.form_fields import FieldReader, FormField
from services.tools.core.openapi.media_types import (
    JSON,
    MAX_MEDIA_TYPES,
    MULTIPART,
    URLENCODED,
    form_type_of,
    json_type_of,
)
from services.tools.core.openapi.references import References, TooManyParts, Unusable, shorten
from services.tools.core.openapi.schemas import BOUND_TO_PROPERTIES, read_only_names
from services.tools.core.openapi.shapes import COMPOSITIONS, has_type

_BODY_IS_OPTIONAL = frozenset({"get", "delete"})
_UNSUPPORTED_IN_FORMS = (*COMPOSITIONS, "patternProperties")


class BodyKind(StrEnum):
    """The encodings of a body."""

    JSON = JSON
    URLENCODED = URLENCODED
    MULTIPART = MULTIPART


@dataclass(frozen=True, slots=True)
class Body:
    """A body. `schema` is the document's schema. A form's schema excludes `left_out`, which maps names to reasons."""

    kind: BodyKind
    media_type: str
    schema: Any
    is_required: bool
    fields: Mapping[str, FormField] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_argument(self) -> bool:
        """Whether the body is an argument of the tool, which is the case unless it is a form without fields."""
        return self.kind is BodyKind.JSON or bool(self.fields)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads the bodies of the operations of a document."""

    references: References
    is_version_3_0: bool

    def read(self, method: str, value: Any) -> Body | None:
        """Return the body, or None if an optional body cannot be sent. Raises Unusable."""
        body = self.references.resolve(value, "request body")
        is_required = body.get("required") is True
        try:
            return self._read(method, body.get("content"), is_required)
        except Unusable:
            if method in _BODY_IS_OPTIONAL and not is_required:
                return None
            raise

    def _read(self, method: str, content: Any, is_required: bool) -> Body:
        if method == "get":
            raise Unusable("it is a GET with a body, which is not sent")
        json_type = json_type_of(content)
        if json_type is not None:
            return Body(BodyKind.JSON, json_type, content[json_type].get("schema", {}), is_required)
        reasons: list[Unusable] = []
        for kind in (BodyKind.URLENCODED, BodyKind.MULTIPART):
            form_type = form_type_of(content, kind)
            if form_type is None:
                continue
            try:
                return self._read_form(kind, content[form_type], is_required)
            except Unusable as reason:
                reasons.append(reason)
        if reasons:
            raise reasons[0]
        kinds = ", ".join(islice(content, MAX_MEDIA_TYPES)) if isinstance(content, dict) else "unknown"
        raise Unusable(f"{method.upper()} has a body of {shorten(kinds)!r}: only JSON and forms are sent")

    def _read_form(self, kind: BodyKind, entry: Mapping[str, Any], is_required: bool) -> Body:
        schema = self.references.resolve(entry.get("schema", {}), "schema of a form")
        properties = self._properties_of(schema)
        fields, left_out = self._read_fields(kind, entry, properties)
        _check_required(schema, left_out)
        kept = {name: value for name, value in properties.items() if name not in left_out}
        if len(fields) == len(properties):
            _check_count(schema, len(fields))
        body = Body(kind, kind, _schema_of_form(schema, kept), is_required, fields, left_out)
        if is_required and not body.is_argument and (left_out or schema.get("additionalProperties") is not False):
            raise Unusable("its form declares no property that can be sent")
        return body

    def _read_fields(
        self, kind: BodyKind, entry: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> tuple[dict[str, FormField], dict[str, str]]:
        """Return the fields of the properties, and the reason for each omitted property. Raises TooManyParts."""
        fields: dict[str, FormField] = {}
        left_out: dict[str, str] = {}
        reader = FieldReader(self.references, self.is_version_3_0, kind)
        read_only = read_only_names(properties)
        for name, value in properties.items():
            if name in read_only:
                continue
            try:
                fields[name] = reader.read(name, value, _encoding_of(entry, name))
            except TooManyParts:
                raise
            except Unusable as reason:
                left_out[name] = str(reason)
        return fields, left_out

    def _properties_of(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the properties of a form, including properties that only `required` names. Raises Unusable."""
        if "type" in schema and not has_type(schema, "object"):
            raise Unusable(f"its form has type {shorten(str(schema['type']))!r}, and only objects are sent as forms")
        if unsupported_keywords := [keyword for keyword in _UNSUPPORTED_IN_FORMS if keyword in schema]:
            raise Unusable(f"its form has {unsupported_keywords[0]!r}, which is not supported")
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise Unusable("its form has 'properties' or 'required' of another type")
        self.references.budget.spend(len(properties) + len(required))
        named: dict[str, Any] = {name: {} for name in required if isinstance(name, str)}
        return {**named, **properties}


def _check_required(schema: Mapping[str, Any], left_out: Mapping[str, str]) -> None:
    required = {name for name in schema.get("required", []) if isinstance(name, str)}
    for name, reason in left_out.items():
        if name in required:
            raise Unusable(f"its form needs {shorten(name)!r}: {reason}")


def _check_count(schema: Mapping[str, Any], count: int) -> None:
    """Raise Unusable if a form requires more properties than it declares."""
    minimum = schema.get("minProperties", 0)
    if isinstance(minimum, int) and minimum > count:
        raise Unusable(f"its form needs {minimum} properties, and declares {count}")


def _schema_of_form(schema: Mapping[str, Any], properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a form that accepts only some of its properties."""
    is_whole = properties.keys() >= schema.get("properties", {}).keys()
    left_out = () if is_whole else BOUND_TO_PROPERTIES
    kept = {keyword: value for keyword, value in schema.items() if keyword not in left_out}
    return {**kept, "type": "object", "nullable": False, "properties": properties, "additionalProperties": False}


def _encoding_of(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    encodings = entry.get("encoding")
    encoding = encodings.get(name) if isinstance(encodings, dict) else None
    return encoding if isinstance(encoding, dict) else {}
