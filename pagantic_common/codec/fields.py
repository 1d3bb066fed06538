"""Converts fields of messages: optional fields to or from None, and protobuf enums to or from Python enums.

A Python enum has the names of the protobuf enum without their prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

NumberT = TypeVar("NumberT", bound=int)
MemberT = TypeVar("MemberT", bound=Enum)
UnknownT = TypeVar("UnknownT")
PartT = TypeVar("PartT", bound=Message)
ValueT = TypeVar("ValueT")


class ProtoEnum(Protocol[NumberT]):
    """A generated enum."""

    def items(self) -> list[tuple[str, NumberT]]:
        """Return the names with their numbers."""


class EnumCodec(Generic[NumberT, MemberT, UnknownT]):
    """Encodes and decodes the members of an enum.

    Args:
        proto_enum: The generated enum.
        members: The Python enum, or some of its members. The prefix and a member's name together form a generated name.
        prefix: The prefix of the generated names, as in `ROLE_`.
        unknown: The result of decoding UNSPECIFIED or a number from a newer version.
    """

    def __init__(
        self, proto_enum: ProtoEnum[NumberT], members: Iterable[MemberT], prefix: str, *, unknown: UnknownT
    ) -> None:
        numbers = dict(proto_enum.items())
        self._unspecified = numbers[f"{prefix}UNSPECIFIED"]
        self._number_of = {member: numbers[f"{prefix}{member.name}"] for member in members}
        self._member_of: dict[int, MemberT] = {number: member for member, number in self._number_of.items()}
        self._unknown = unknown

    def to_proto(self, member: MemberT | None) -> NumberT:
        """Encode a member. None becomes UNSPECIFIED."""
        if member is None:
            return self._unspecified
        return self._number_of[member]

    def from_proto(self, number: int) -> MemberT | UnknownT:
        """Decode a number, or return `unknown` for a number without a member."""
        return self._member_of.get(number, self._unknown)


def name_of(proto_enum: ProtoEnum[NumberT], number: int, prefix: str) -> str:
    """Return the name of a number without its prefix, or the number itself if this version does not know it."""
    names: dict[int, str] = {value: name for name, value in proto_enum.items()}
    return names.get(number, str(number)).removeprefix(prefix)


def optional(message: Message, field: str) -> Any:
    """Return the value of an optional field, or None if the field is unset."""
    if message.HasField(field):
        return getattr(message, field)
    return None


def decode_optional(message: Message, field: str, decode: Callable[[Any], ValueT]) -> ValueT | None:
    """Decode the message in a field, or return None if the field is unset."""
    if message.HasField(field):
        return decode(getattr(message, field))
    return None


def encode_optional(value: ValueT | None, encode: Callable[[ValueT], PartT]) -> PartT | None:
    """Encode a value. None stays None, which leaves the field unset."""
    if value is None:
        return None
    return encode(value)
