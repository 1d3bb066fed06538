"""Writes the body of a call: JSON, a URL-encoded form, or the parts of a multipart form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.openapi.bodies import Body, BodyKind
from services.tools.core.openapi.form_fields import PART_NAMES, FormField, can_name_part
from services.tools.core.openapi.media_types import JSON, URLENCODED, is_json
from services.tools.core.openapi.styles import Pair, Pairs, check_names, encode, is_header_text, pairs_of, text_of


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a multipart form. A part without a media type is plain text, and a file has a file name."""

    name: str
    text: str
    media_type: str | None = None
    file_name: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a request: the parts of a multipart form, or a text with its media type."""

    media_type: str
    text: str = ""
    parts: tuple[Part, ...] = ()


def content_of(body: Body, value: Any) -> Content | None:
    """Return the content for the body's argument, or None for an empty multipart form. Raises ToolFailed."""
    match body.kind:
        case BodyKind.JSON:
            return Content(_json_type_of(body), dump_json(value))
        case BodyKind.URLENCODED:
            form = Pairs(body.fields)
            for field, item in _filled(body.fields, value):
                form.add(field.name, field.argument, _pairs_of_field(field, item))
            return Content(URLENCODED, form.text)
        case BodyKind.MULTIPART:
            parts = tuple(_parts_of_form(body.fields, value))
            # A multipart body has at least one part (RFC 2046, section 5.1).
            return Content(body.media_type, parts=parts) if parts else None


def _json_type_of(body: Body) -> str:
    """Return the media type of a JSON body. If the document declares a range, it is application/json."""
    if "*" in body.media_type or not is_header_text(body.media_type):
        return JSON
    return body.media_type


def _filled(fields: Mapping[str, FormField], value: Mapping[str, Any]) -> Iterator[tuple[FormField, Any]]:
    """Yield the fields with their values, without fields that are null."""
    return ((fields[name], item) for name, item in value.items() if item is not None)


def _pairs_of_field(field: FormField, value: Any) -> Iterable[Pair]:
    if field.parameter is not None:
        return pairs_of(field.parameter, value)
    return [(encode(field.name), encode(text)) for text, _ in _texts_of(field, value)]


def _parts_of_form(fields: Mapping[str, FormField], value: Mapping[str, Any]) -> Iterator[Part]:
    used_names: set[str] = set()
    for field, item in _filled(fields, value):
        parts = list(_parts_of(field, item))
        names = {part.name for part in parts}
        check_names(field.argument, names, used_names | fields.keys() - {field.name})
        used_names |= names
        yield from parts


def _parts_of(field: FormField, value: Any) -> Iterator[Part]:
    if field.parameter is not None:
        # Parts are not percent-encoded. Only exploded values, which have no separators, reach this line.
        parts = [Part(unquote(name), unquote(text)) for name, text in pairs_of(field.parameter, value)]
    else:
        file_name = field.name if field.is_file else None
        parts = [Part(field.name, text, media_type, file_name) for text, media_type in _texts_of(field, value)]
    for part in parts:
        if not can_name_part(part.name):
            raise ToolFailed(f"argument {field.argument!r} has the name {part.name[:80]!r}: {PART_NAMES}")
    yield from parts


def _texts_of(field: FormField, value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield the text and the media type of each item of a list, or of a single value."""
    is_plain = field.is_file or (field.media_type is not None and not is_json(field.media_type))
    for item in value if isinstance(value, list) else [value]:
        is_nested = isinstance(item, dict | list)
        if is_plain:
            if is_nested:
                raise ToolFailed(
                    f"argument {field.argument!r} has a list or an object, which {field.media_type} cannot write"
                )
            yield text_of(item), field.media_type
        elif is_nested or field.media_type is not None:
            yield dump_json(item), field.media_type or JSON
        else:
            yield text_of(item), None
