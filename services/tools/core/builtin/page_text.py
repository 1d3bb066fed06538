"""Converts the bytes of a fetched page to text, within limits that also apply to compressed pages."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Mapping
from email.message import Message
from typing import Final

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import dump_json

# Python's names of page encodings. Python's other codecs are slow or do not encode text.
_ENCODINGS: Final = frozenset(
    {"utf-8", "ascii", "utf-16", "utf-16-le", "utf-16-be", "big5", "euc_jp", "euc_kr", "gb18030", "gb2312", "gbk"}
    | {"koi8-r", "koi8-u", "shift_jis", *(f"cp{page}" for page in range(1250, 1259))}
    | {f"iso8859-{part}" for part in range(1, 17)}
)
_TEXT_TYPES: Final = frozenset(
    {"application/json", "application/xml", "application/javascript", "application/x-ndjson", "application/yaml"}
)
_ANY_ZLIB_HEADER: Final = 32 + zlib.MAX_WBITS  # accepts gzip and zlib data


def check_text_type(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return a page's media type and Python's name of its encoding. Raises ToolFailed if it is not text."""
    header = Message()
    header["content-type"] = headers.get("content-type", "")[:200]
    media_type = header.get_content_type()
    is_text = media_type.startswith("text/") or media_type.endswith(("+json", "+xml")) or media_type in _TEXT_TYPES
    if not is_text or not headers.get("content-type"):
        named = headers.get("content-type", "")[:100] or "none"
        raise ToolFailed(f"the page is not text, its content type is {named!r}: ask for a page of text")
    return media_type, _encoding(header.get_content_charset("utf-8"))


def _encoding(charset: str) -> str:
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return "utf-8"
    if name not in _ENCODINGS:
        return "utf-8"
    return name


def cut_to_json_bytes(text: str, max_bytes: int) -> str:
    """Return the longest prefix of a text that fits in `max_bytes` as a JSON string."""
    size_bytes = len(dump_json(text).encode())
    while text and size_bytes > max_bytes:
        text = text[: len(text) * max(max_bytes, 0) // size_bytes]
        size_bytes = len(dump_json(text).encode())
    return text


class BodyReader:
    """Collects a body up to a limit on its decoded bytes. Bytes beyond the limit are never decompressed.

    Args:
        content_encoding: The header of the response. Raises ToolFailed unless it is gzip, deflate or empty.
        max_bytes: The maximum number of bytes to keep.
    """

    def __init__(self, content_encoding: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._is_truncated = False
        self._decompressor = _decompressor(content_encoding.strip().lower())

    @property
    def is_truncated(self) -> bool:
        """Whether the body has more bytes than the limit."""
        return self._is_truncated

    def add(self, chunk: bytes) -> None:
        """Add the next bytes of the response. Raises ToolFailed if they cannot be decompressed."""
        room = self._max_bytes + 1 - len(self._kept)
        try:
            if self._decompressor is not None:
                chunk = self._decompressor.decompress(chunk, room)
        except zlib.error:
            raise ToolFailed("the page's compressed bytes are broken: try another page", is_final=False) from None
        self._kept += chunk[:room]
        if len(self._kept) > self._max_bytes:
            self._is_truncated = True
            del self._kept[self._max_bytes :]

    def text(self, encoding: str) -> str:
        """Return the text. Undecodable bytes become U+FFFD, and a character cut by the limit is dropped."""
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        return decoder.decode(bytes(self._kept), final=not self._is_truncated)


def _decompressor(content_encoding: str) -> zlib._Decompress | None:
    if content_encoding in {"", "identity"}:
        return None
    if content_encoding in {"gzip", "x-gzip", "deflate"}:
        return zlib.decompressobj(_ANY_ZLIB_HEADER)
    raise ToolFailed(f"the page is compressed as {content_encoding[:40]!r}, which is not supported: try another page")
