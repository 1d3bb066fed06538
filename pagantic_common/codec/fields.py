"""Optional fields of messages <-> None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

PartT = TypeVar("PartT", bound=Message)
ValueT = TypeVar("ValueT")


def optional(message: Message, field: str) -> Any:
    """Return the value of an optional field; None for an unset field."""
    if message.HasField(field):
        return getattr(message, field)
    return None


def decode_optional(message: Message, field: str, decode: Callable[[Any], ValueT]) -> ValueT | None:
    """Decode the message in a field; None for an unset field."""
    if message.HasField(field):
        return decode(getattr(message, field))
    return None


def encode_optional(value: ValueT | None, encode: Callable[[ValueT], PartT]) -> PartT | None:
    """Encode a value; None stays None, which leaves the field unset."""
    if value is None:
        return None
    return encode(value)
