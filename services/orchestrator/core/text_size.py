"""How much text a value holds, which is nearly all of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text_size(value: Any) -> int:
    """Return the characters of all texts in a value: of dataclasses, sequences and mappings, however nested."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(text_size(key) + text_size(one) for key, one in value.items())
    if isinstance(value, tuple | list):
        return sum(map(text_size, value))
    if (fields := getattr(value, "__dataclass_fields__", None)) is not None:
        return sum(text_size(getattr(value, name)) for name in fields)
    return 0
