"""Reads the properties of forms: the encoding of each property, or the reason why it cannot be written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from services.tools.core.openapi.media_types import MULTIPART, URLENCODED, is_json
from services.tools.core.openapi.parameters import BODY, Parameter, Style, read_parameter
from services.tools.core.openapi.references import References, Unusable
from services.tools.core.openapi.shapes import (
    Shape,
    declares_nested_values,
    is_container,
    is_file,
    is_list,
    shapes_of,
    single_shapes_of,
)

_STYLE_KEYWORDS = ("style", "explode", "allowReserved")
PART_NAMES = "the name of a part must be printable, without quotation marks and backslashes"
_FILE_TYPE = "application/octet-stream"
_MAX_TYPES_CHARS = 1024
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(;[ -~]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FormField:
    """A property of a form, encoded like the query parameter `parameter`, or else by its media type.

    If both are None, text is plain, and lists and objects are JSON. A file is a text sent with a file name.
    """

    name: str
    parameter: Parameter | None = None
    media_type: str | None = None
    is_file: bool = False

    @property
    def argument(self) -> str:
        """The argument name of the field for messages."""
        return _argument_of(self.name)


@dataclass(frozen=True, slots=True)
class FieldReader:
    """Reads the properties of forms of one media type. In version 3.0, only URL-encoded forms have styles."""

    references: References
    is_version_3_0: bool
    form_type: str

    def read(self, name: str, schema: Any, encoding: Mapping[str, Any]) -> FormField:
        """Return the field of a property. Raises Unusable."""
        if self.form_type == MULTIPART and not can_name_part(name):
            raise Unusable(PART_NAMES)
        has_styles = self.form_type == URLENCODED or not self.is_version_3_0
        if has_styles and any(keyword in encoding for keyword in _STYLE_KEYWORDS):
            return self._read_styled(name, schema, encoding)
        return self._read_typed(name, schema, encoding)

    def _read_typed(self, name: str, schema: Any, encoding: Mapping[str, Any]) -> FormField:
        """Return the field of a property that is encoded by its media type. Raises Unusable."""
        values = list(single_shapes_of(schema, self.references))
        media_type = _first_type_of(encoding.get("contentType"))
        has_file = any(map(is_file, values))
        if has_file and media_type is None:
            media_type = _file_type_of(values)
        if media_type is not None and not is_json(media_type) and any(map(is_container, values)):
            raise Unusable(f"it has lists or objects of type {media_type!r}, and only JSON is written")
        return FormField(name, None, media_type, has_file)

    def _read_styled(self, name: str, schema: Any, encoding: Mapping[str, Any]) -> FormField:
        """Return the field for a property in the style of a query parameter. Raises Unusable for undefined styles."""
        styles = {keyword: encoding[keyword] for keyword in ("style", "explode") if keyword in encoding}
        read = read_parameter({"name": name, "in": "query", "schema": schema, **styles})
        parameter = replace(read, argument=_argument_of(name))
        style = str(parameter.style)
        if self.form_type == MULTIPART and not parameter.explode:
            raise Unusable(f"style {style!r} without 'explode' is not supported in {MULTIPART}")
        shapes = list(shapes_of(schema, self.references))
        if parameter.style is Style.DEEP_OBJECT and any(map(is_list, shapes)):
            raise Unusable(f"style {style!r} is not defined for lists")
        if declares_nested_values(shapes, self.references):
            raise Unusable(f"style {style!r} cannot write a list or an object inside another")
        return FormField(name, parameter)


def can_name_part(name: str) -> bool:
    """Return whether a part of a multipart form can have this name."""
    return name.isprintable() and '"' not in name and "\\" not in name


def _argument_of(name: str) -> str:
    return f"{BODY}.{name}"


def _file_type_of(values: Collection[Shape]) -> str:
    """Return the type that the schema of a file declares, or the type for arbitrary bytes."""
    declared = (_first_type_of(shape.get("contentMediaType")) for shape in values)
    return next(filter(None, declared), _FILE_TYPE)


def _first_type_of(declared: Any) -> str | None:
    """Return the first type that is not a range from a comma-separated list; None if there are only ranges."""
    if not isinstance(declared, str) or len(declared) > _MAX_TYPES_CHARS:
        return None
    types = [part.strip() for part in declared.split(",")]
    return next((part for part in types if "*" not in part and _MEDIA_TYPE.fullmatch(part)), None)
