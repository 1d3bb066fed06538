"""The size of a value: its text size, which accounts for nearly all of its memory, and its encoded size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pagantic_common.domain.text.json_text import dump_json


def text_size(value: Any) -> int:
    """Return the number of characters of all texts in a value.

    The value may consist of dataclasses, tuples, lists and dicts, nested to any depth.
    """
    kind: Any = type(value)
    if kind is str:
        return len(value)
    if kind is tuple or kind is list:
        return sum(map(text_size, value))
    if kind is dict:
        return sum(map(text_size, value)) + sum(map(text_size, value.values()))
    size = 0
    for name in _fields_of(kind):
        part = getattr(value, name)
        if type(part) is str:
            size += len(part)
        elif part and type(part) not in _TEXTLESS:
            size += text_size(part)
    return size


_SEQUENCES = frozenset({tuple, list, frozenset})
_TEXTLESS = frozenset({bool, int, float})
_TAG_BYTES = 2  # A field begins with its number and its wire type.
_LENGTH_BYTES = 4  # Sufficient for the length of a text or a message below 256 MiB.
_NUMBER_BYTES = 16  # Sufficient for a float, an enum or a timestamp.
_FIXED_BYTES: Mapping[type, int] = {float: _TAG_BYTES + 8, bool: _TAG_BYTES + 1, type(None): 0}


def encoded_bound(value: Any) -> int:
    """Return an upper bound, in bytes, for the size of a value's protobuf field.

    Mappings are encoded as JSON texts.
    """
    kind: Any = type(value)
    if kind in _FIXED_BYTES:
        return _FIXED_BYTES[kind]
    if kind is int:
        return _TAG_BYTES + (10 if value < 0 else 1 + value.bit_length() // 7)
    if kind in _SEQUENCES:
        return sum(map(encoded_bound, value))
    if kind is str:
        content = byte_size(value)
    elif isinstance(value, Mapping):
        content = byte_size(dump_json(dict(value)))
    elif fields := _fields_of(kind):
        content = sum(encoded_bound(part) for name in fields if (part := getattr(value, name)) is not None)
    else:
        return _TAG_BYTES + _NUMBER_BYTES
    return _TAG_BYTES + _LENGTH_BYTES + content


def byte_size(text: str) -> int:
    """Return the size of a text in bytes of UTF-8."""
    if text.isascii():
        return len(text)
    return len(text.encode(errors="replace"))


@lru_cache(maxsize=256)
def _fields_of(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))
