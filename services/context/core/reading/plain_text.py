"""Decodes bytes with a recognizable encoding, and cleans text for storage."""

from __future__ import annotations

import codecs
import re
from typing import Final

_MARKS: Final = (  # UTF-32 precedes UTF-16, because the UTF-16 mark is a prefix of the UTF-32 mark.
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LINE_END: Final = re.compile(r"\r\n?|\u2028|\u2029")
_HALF_OF_PAIR: Final = re.compile("[\ud800-\udfff]")
# Control characters that text never contains, unlike tab, line ends, form feed, backspace and escape in old texts.
_NOT_TEXT: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_SAMPLE_CHARS: Final = 65_536
_MAX_CONTROL_RATIO: Final = 0.01


def decode_marked(data: bytes) -> str | None:
    """Decode bytes that have a byte order mark or are UTF-8. Returns None for other bytes."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _decode(data[len(mark) :], encoding)
    return _decode(data, "utf-8")


def _decode(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None


def is_text(text: str) -> bool:
    """Return whether decoded bytes look like text: the first characters contain few control characters."""
    sample = text[:_SAMPLE_CHARS]
    return len(_NOT_TEXT.findall(sample)) <= _MAX_CONTROL_RATIO * len(sample)


def clean(text: str) -> str:
    """Normalize line ends to line feeds, remove NUL, and replace lone surrogates."""
    if "\r" in text or "\u2028" in text or "\u2029" in text:
        text = _LINE_END.sub("\n", text)
    return _HALF_OF_PAIR.sub("\ufffd", text.replace("\0", ""))
