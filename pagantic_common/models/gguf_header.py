"""Reads the metadata of a GGUF file without an engine. The file may be hostile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

MAGIC = b"GGUF"
MAX_ENTRIES = 65536
MAX_TEXT_BYTES = 1024 * 1024
MAX_METADATA_BYTES = 128 * 1024 * 1024
MAX_ELEMENTS = 16 * 1024 * 1024
_BOOL, _STRING, _ARRAY = 7, 8, 9
# The `struct` letter for each numeric type, in the order of the format's enumeration.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}


class NotGguf(ValueError):
    """The file is damaged, or is not a GGUF file of version 2 or 3."""


def read_gguf_header(path: Path) -> dict[str, str]:
    """Return the metadata as text, with booleans as true and false. Arrays are omitted.

    Raises NotGguf if the file is invalid or a value exceeds the limits of this module, and OSError if it is unreadable.
    """
    with path.open("rb") as file:
        reader = _Reader(file, path.stat().st_size)
        if reader.take(len(MAGIC)) != MAGIC:
            raise NotGguf("it does not begin as a GGUF file does")
        version = reader.number("I")
        if version not in (2, 3):
            raise NotGguf(f"its version of the format is {version}, and 2 and 3 are known")
        reader.number("Q")  # number of tensors
        count = _bounded(reader.number("Q"), MAX_ENTRIES, "entries")
        metadata: dict[str, str] = {}
        for _ in range(count):
            key, value = reader.text(), reader.value(reader.number("I"))
            _bounded(file.tell(), MAX_METADATA_BYTES, "bytes")
            if value is not None:
                metadata[key] = value
        return metadata


class _Reader:
    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes

    def take(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise NotGguf("it ends inside its metadata")
        return data

    def number(self, letter: str) -> int:
        return int(struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))[0])

    def text(self) -> str:
        return self.take(_bounded(self.number("Q"), MAX_TEXT_BYTES, "bytes of a text")).decode("utf-8", "replace")

    def value(self, kind: int) -> str | None:
        """Read a value, and return it as text. An array is skipped, and returned as None."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            self._skip_array()
            return None
        letter = _letter_of(kind)
        (value,) = struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))
        return str(value).lower()

    def _skip_array(self) -> None:
        kind, count = self.number("I"), _bounded(self.number("Q"), MAX_ELEMENTS, "elements of an array")
        if kind == _STRING:
            for _ in range(count):
                self._skip(_bounded(self.number("Q"), MAX_TEXT_BYTES, "bytes of a text"))
        else:
            self._skip(count * struct.calcsize(f"<{_letter_of(kind)}"))

    def _skip(self, size: int) -> None:
        if self._file.tell() + size > self._size_bytes:
            raise NotGguf("it ends inside its metadata")
        self._file.seek(size, 1)


def _letter_of(kind: int) -> str:
    if kind not in _NUMBERS:
        raise NotGguf(f"its metadata has a value of the unknown type {kind}")
    return _NUMBERS[kind]


def _bounded(value: int, limit: int, what: str) -> int:
    if value > limit:
        raise NotGguf(f"its metadata has {value} {what}, and the limit is {limit}")
    return value
