"""The text of bytes of undeclared encoding."""

from __future__ import annotations

import re
from typing import Final

from charset_normalizer import from_bytes

from pagantic_common.domain.errors import InvalidRequest
from services.context.core.reading.plain_text import clean, decode_marked, is_text

_DECLARED: Final = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_HEAD_BYTES: Final = 4096
_GUESSED_BYTES: Final = 1024 * 1024


def decode(data: bytes, *, is_html: bool = False) -> str:
    """Return a text as it is stored: by its byte order mark, as UTF-8, as HTML declares, or by its letters.

    Raises InvalidRequest for bytes that are no text.
    """
    text = decode_marked(data)
    if text is None and is_html:
        text = _decode_declared(data)
    if text is None:
        text = _decode_guessed(data)
    if not is_text(text):
        raise InvalidRequest("the file is not text: it has too many control characters; send it as text or PDF")
    return clean(text)


def _decode_declared(data: bytes) -> str | None:
    declared = _DECLARED.search(data[:_HEAD_BYTES])
    if declared is None:
        return None
    try:
        return data.decode(declared[1].decode())
    except (LookupError, UnicodeDecodeError):
        return None


def _decode_guessed(data: bytes) -> str:
    best = from_bytes(data[:_GUESSED_BYTES]).best()
    try:
        if best is not None:
            return data.decode(best.encoding)
    except UnicodeDecodeError:
        pass
    raise InvalidRequest("the file is no text of a known encoding: save it as UTF-8, or send it as PDF")
