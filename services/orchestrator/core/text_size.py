"""The size of a value: of its texts, which take nearly all of its memory, and of its encoded form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pagantic_common.domain.text.json_text import dump_json


def text_size(value: Any) -> int:
    """Return the characters of all texts in a value: of dataclasses, tuples, lists and dicts, however nested."""
    kind: Any = type(value)
    if kind is str:
        return len(value)
    if kind is tuple or kind is list:
        return sum(map(text_size, value))
    if kind is dict:
        return sum(text_size(key) + text_size(one) for key, one in value.items())
    size = 0
    for name in _fields_of(kind):
        one = getattr(value, name)
        if one:  # most fields are empty
            size += text_size(one)
    return size


_TAG_BYTES = 2  # A field begins with its number and kind.
_LENGTH_BYTES = 4  # This is enough for the length of a text or a message below 256 MiB.
_NUMBER_BYTES = 16  # This is enough for a float, an enum or a moment.


def encoded_bound(value: Any) -> int:
    """Return a size in bytes that the protobuf field of a value does not exceed. Mappings become JSON texts."""
    kind: Any = type(value)
    if kind in _LEAVES:
        return _LEAVES[kind](value)
    if kind is tuple or kind is list or kind is frozenset:
        return sum(map(encoded_bound, value))
    if isinstance(value, Mapping):
        return _TAG_BYTES + _LENGTH_BYTES + byte_size(dump_json(dict(value)))
    fields = _fields_of(kind)
    if not fields:
        return _TAG_BYTES + _NUMBER_BYTES
    return _TAG_BYTES + _LENGTH_BYTES + sum(encoded_bound(getattr(value, name)) for name in fields)


def byte_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    if text.isascii():
        return len(text)
    return len(text.encode(errors="replace"))


@lru_cache(maxsize=256)
def _fields_of(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))


_LEAVES: Mapping[type, Callable[[Any], int]] = {
    str: lambda text: _TAG_BYTES + _LENGTH_BYTES + byte_size(text),
    int: lambda number: _TAG_BYTES + (10 if number < 0 else 1 + number.bit_length() // 7),
    float: lambda _number: _TAG_BYTES + 8,
    bool: lambda _value: _TAG_BYTES + 1,
    type(None): lambda _none: 0,
}
