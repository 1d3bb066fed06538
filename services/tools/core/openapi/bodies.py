"""Reads the bodies of operations: JSON, and forms whose properties a form can hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from services.tools.core.openapi.media_types import JSON, MULTIPART, URLENCODED, form_type_of, is_json, json_type_of
from services.tools.core.openapi.parameters import Parameter, Style, read_parameter
from services.tools.core.openapi.references import References, Unusable, shorten

_BODY_IS_OPTIONAL = frozenset({"get", "delete"})
_STYLE_KEYWORDS = ("style", "explode", "allowReserved")
_COMPOSITIONS = ("allOf", "anyOf", "oneOf")
_UNSUPPORTED_IN_FORMS = (*_COMPOSITIONS, "patternProperties")
_FILE_FORMATS = ("binary", "byte")
_FILE_TYPE = "application/octet-stream"
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(;[ -~]*)?", re.ASCII)


class BodyKind(StrEnum):
    """The ways in which a body is written."""

    JSON = JSON
    URLENCODED = URLENCODED
    MULTIPART = MULTIPART


@dataclass(frozen=True, slots=True)
class FormField:
    """A property of a form: written as a query parameter is, or else by its media type, None for the value's default.

    A file is a text that is sent under a file name.
    """

    name: str
    parameter: Parameter | None = None
    media_type: str | None = None
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """A body; `schema` is the document's own, without the properties that are left out, which have their reasons."""

    kind: BodyKind
    media_type: str
    schema: Any
    is_required: bool
    fields: Mapping[str, FormField] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_argument(self) -> bool:
        """Whether there is anything to send."""
        return self.kind is BodyKind.JSON or bool(self.fields)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads the bodies of one document. Version 3.0 has styles in encoded forms alone."""

    references: References
    is_version_3_0: bool

    def read(self, method: str, value: Any) -> Body | None:
        """Return a body that can be sent; None where it is optional and cannot be sent. Raises Unusable."""
        body = self.references.resolve(value, "request body")
        is_required = body.get("required") is True
        try:
            return self._read(method, body.get("content"), is_required)
        except Unusable:
            if method in _BODY_IS_OPTIONAL and not is_required:
                return None
            raise

    def _read(self, method: str, content: Any, is_required: bool) -> Body:
        json_type = json_type_of(content)
        if method != "get" and json_type is not None:
            return Body(BodyKind.JSON, json_type, content[json_type].get("schema", {}), is_required)
        for kind in (BodyKind.URLENCODED, BodyKind.MULTIPART):
            form_type = form_type_of(content, kind)
            if method != "get" and form_type is not None:
                return self._read_form(kind, content[form_type], is_required)
        kinds = ", ".join(content) if isinstance(content, dict) else "unknown"
        raise Unusable(f"{method.upper()} has a body of {shorten(kinds)!r}: only JSON and forms are sent")

    def _read_form(self, kind: BodyKind, entry: Mapping[str, Any], is_required: bool) -> Body:
        schema = self.references.resolve(entry.get("schema", {}), "schema of a form")
        properties, required = _properties_of(schema)
        encodings = entry.get("encoding")
        fields: dict[str, FormField] = {}
        left_out: dict[str, str] = {}
        for name, value in properties.items():
            if isinstance(value, dict) and value.get("readOnly") is True:
                continue
            encoding = encodings.get(name) if isinstance(encodings, dict) else None
            try:
                fields[name] = self._read_field(kind, name, value, encoding if isinstance(encoding, dict) else {})
            except Unusable as reason:
                if name in required:
                    raise Unusable(f"its form needs {shorten(name)!r}: {reason}") from None
                left_out[name] = str(reason)
        if is_required and not fields and (left_out or schema.get("additionalProperties") is not False):
            raise Unusable("its form declares no property that can be sent")
        kept = {name: value for name, value in properties.items() if name not in left_out}
        closed = {**schema, "type": "object", "nullable": False, "properties": kept, "additionalProperties": False}
        return Body(kind, kind, closed, is_required, fields, left_out)

    def _read_field(self, kind: BodyKind, name: str, schema: Any, encoding: Mapping[str, Any]) -> FormField:
        has_styles = kind is BodyKind.URLENCODED or not self.is_version_3_0
        if has_styles and any(keyword in encoding for keyword in _STYLE_KEYWORDS):
            styles = {keyword: encoding[keyword] for keyword in ("style", "explode") if keyword in encoding}
            parameter = read_parameter({"name": name, "in": "query", "schema": schema, **styles})
            self._check_style(kind, parameter)
            return FormField(name, parameter)
        parts = list(self._alternatives(schema))
        items = [part for inner in parts if _is_list(inner) for part in self._alternatives(inner.get("items"))]
        values = [part for part in parts if not _is_list(part)] + items
        is_file = any(_is_file(part) for part in values)
        media_type = _media_type_of(encoding.get("contentType"))
        if is_file and media_type is None:
            declared = [_media_type_of(part.get("contentMediaType")) for part in values]
            media_type = next(filter(None, declared), _FILE_TYPE)
        if media_type is not None and not is_json(media_type) and any(map(_is_container, values)):
            raise Unusable(f"it has lists or objects of type {media_type!r}, and only JSON is written")
        return FormField(name, None, media_type, is_file)

    def _check_style(self, kind: BodyKind, parameter: Parameter) -> None:
        """Raise Unusable for what the standard does not define."""
        if kind is BodyKind.MULTIPART and not parameter.explode:
            raise Unusable(f"style {parameter.style!r} without 'explode' is not supported in {kind}")
        for part in self._alternatives(parameter.schema):
            if parameter.style is Style.DEEP_OBJECT and _is_list(part):
                raise Unusable("style 'deepObject' is not defined for lists")
            inner_parts = (inner for value in _values_in(part) for inner in self._alternatives(value))
            if any(map(_is_container, inner_parts)):
                raise Unusable(f"style {str(parameter.style)!r} cannot write a list or an object inside another")

    def _alternatives(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """Yield a schema, those it is composed of, and those they refer to, each of these once. Raises Unusable."""
        followed: set[str] = set()
        waiting = [schema]
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict):
                continue
            yield part
            reference = part.get("$ref")
            if reference is not None and str(reference) not in followed:
                followed.add(str(reference))
                waiting.append(self.references.find(reference))
            for keyword in _COMPOSITIONS:
                composed = part.get(keyword)
                waiting += composed if isinstance(composed, list) else []


def _properties_of(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Any]]:
    """Return the properties of a form, with those that are only named as required, and which are required."""
    if not _has_type(schema, "object") and "type" in schema:
        raise Unusable(f"its form has type {shorten(str(schema['type']))!r}, and only objects are sent as forms")
    for keyword in _UNSUPPORTED_IN_FORMS:
        if keyword in schema:
            raise Unusable(f"its form has {keyword!r}, which is not supported")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise Unusable("its form has 'properties' or 'required' of another type")
    return {
        **properties,
        **{name: {} for name in required if isinstance(name, str) and name not in properties},
    }, required


def _media_type_of(declared: Any) -> str | None:
    """Return the first type of a list with commas that is no range; None where there is none."""
    if not isinstance(declared, str):
        return None
    types = [part.strip() for part in declared.split(",")]
    return next((part for part in types if "*" not in part and _MEDIA_TYPE.fullmatch(part)), None)


def _values_in(part: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of a list's items and of an object's values."""
    named, listed = part.get("properties"), part.get("prefixItems")
    return [
        part.get("items"),
        part.get("additionalProperties"),
        *(named.values() if isinstance(named, dict) else ()),
        *(listed if isinstance(listed, list) else ()),
    ]


def _is_file(part: Mapping[str, Any]) -> bool:
    return part.get("format") in _FILE_FORMATS or "contentMediaType" in part or "contentEncoding" in part


def _is_container(part: Mapping[str, Any]) -> bool:
    return _is_list(part) or _has_type(part, "object") or isinstance(part.get("properties"), dict)


def _is_list(part: Mapping[str, Any]) -> bool:
    return _has_type(part, "array") or "items" in part or "prefixItems" in part


def _has_type(part: Mapping[str, Any], name: str) -> bool:
    kind = part.get("type")
    return kind == name or (isinstance(kind, list) and name in kind)
