"""Defines and checks the limits of a file's size and of the length of its text."""

from __future__ import annotations

from dataclasses import dataclass

from pagantic_common.domain.errors import InvalidRequest

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadingBounds:
    """The limits of a file: its size in bytes, also after decompression, and the length of its text in characters."""

    max_bytes: int
    max_chars: int


def check_size(bounds: ReadingBounds, size_bytes: int) -> None:
    """Raise InvalidRequest if a file has more bytes than allowed."""
    if size_bytes > bounds.max_bytes:
        raise InvalidRequest(
            f"the file has {size_bytes} bytes or more, at most {bounds.max_bytes} are allowed: split it, or raise "
            "PAGANTIC_CONTEXT_MAX_FILE_BYTES"
        )


def check_length(bounds: ReadingBounds, chars: int) -> None:
    """Raise InvalidRequest if text has more characters than allowed."""
    if chars > bounds.max_chars:
        raise InvalidRequest(
            f"the text has {chars} characters or more, at most {bounds.max_chars} are allowed: split the file, or "
            "raise PAGANTIC_CONTEXT_MAX_DOCUMENT_CHARS"
        )
