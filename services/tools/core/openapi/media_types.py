"""Recognizes the media types of bodies as documents write them."""

from __future__ import annotations

from itertools import islice
from typing import Any

JSON = "application/json"
URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MAX_MEDIA_TYPES = 64
_RANGES = ("application/*", "*/*")


def json_type_of(content: Any) -> str | None:
    """Return the key of a `content` object that is JSON or a range that includes JSON. Its value is an object."""
    usable = _usable_types(content)
    json_types = [media_type for media_type in usable if is_json(media_type)]
    ranges = [media_type for media_type in usable if media_type in _RANGES]
    return next(iter(json_types + ranges), None)


def form_type_of(content: Any, essence: str) -> str | None:
    """Return the key of a `content` object that is the given form type, with or without parameters."""
    return next((media_type for media_type in _usable_types(content) if _essence_of(media_type) == essence), None)


def is_json(media_type: str) -> bool:
    """Return whether a media type, with or without parameters, is JSON."""
    essence = _essence_of(media_type)
    return essence in {JSON, "text/json"} or (essence.startswith("application/") and essence.endswith("+json"))


def _usable_types(content: Any) -> list[str]:
    if not isinstance(content, dict):
        return []
    entries = islice(content.items(), MAX_MEDIA_TYPES)
    return [str(media_type) for media_type, value in entries if isinstance(value, dict)]


def _essence_of(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()
