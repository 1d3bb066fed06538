"""The size of a value's texts, which take nearly all of its memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


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


@lru_cache(maxsize=256)
def _fields_of(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__dataclass_fields__", ()))
