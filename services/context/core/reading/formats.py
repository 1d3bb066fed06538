"""Detects the format of a file from its first bytes and, for text formats, from its media type or name."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from pagantic_common.domain.errors import InvalidRequest

SUPPORTED: Final = "text, Markdown, HTML, PDF, docx, pptx, xlsx, JSON and CSV, each also as .gz"


class Format(StrEnum):
    """A supported format. Its value is the media type."""

    TEXT = "text/plain"
    MARKDOWN = "text/markdown"
    HTML = "text/html"
    JSON = "application/json"
    JSON_LINES = "application/jsonl"
    CSV = "text/csv"
    PDF = "application/pdf"
    DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
    PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
    XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    ZIP = "application/zip"  # Stands for any office format until the entries have been read.
    GZIP = "application/gzip"


_SIGNATURES: Final = ((b"%PDF-", Format.PDF), (b"PK\x03\x04", Format.ZIP), (b"\x1f\x8b", Format.GZIP))
_REFUSED_SIGNATURES: Final = (
    (b"\x89PNG\r\n", "a PNG picture: describe it in text"),
    (b"\xff\xd8\xff", "a JPEG picture: describe it in text"),
    (b"GIF8", "a GIF picture: describe it in text"),
    (b"\xd0\xcf\x11\xe0", "an Office file of the old format: save it as docx, pptx or xlsx"),
    (b"{\\rtf", "an RTF file: save it as docx"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\0", "a program"),
    (b"SQLite format 3\0", "a database: export its tables as CSV"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ\0", "an xz archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
)
_TEXT_SUFFIXES: Final = {
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".mdown": Format.MARKDOWN,
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".xhtml": Format.HTML,
    ".json": Format.JSON,
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
}
_TEXT_TYPES: Final = {
    **{known.value: known for known in (Format.TEXT, *_TEXT_SUFFIXES.values())},
    "application/xhtml+xml": Format.HTML,
    "application/x-ndjson": Format.JSON_LINES,
    "text/tab-separated-values": Format.CSV,
}
_HTML_START: Final = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE | re.DOTALL)
_TAR_MARK: Final = slice(257, 262)
HEAD_BYTES: Final = 1024


def detect(name: str, media_type: str, head: bytes) -> Format:
    """Detect the format of a file from its first bytes, else from the given media type, else from its name.

    Raises InvalidRequest with a message that suggests the next step if the format is not supported.
    """
    for signature, what in _REFUSED_SIGNATURES:
        if head.startswith(signature):
            raise InvalidRequest(f"the file is {what} ({SUPPORTED} are read)")
    if head[_TAR_MARK] == b"ustar":
        raise InvalidRequest(f"the file is a tar archive: unpack it first ({SUPPORTED} are read)")
    for signature, file_format in _SIGNATURES:
        if head.startswith(signature):
            return file_format
    if b"%PDF-" in head[:HEAD_BYTES] and _suffix_of(name) == ".pdf":  # PDF readers allow bytes before the marker.
        return Format.PDF
    return _text_format(name, media_type, head)


def _text_format(name: str, media_type: str, head: bytes) -> Format:
    base_type = media_type.split(";", 1)[0].strip().lower()
    if base_type in _TEXT_TYPES:
        return _TEXT_TYPES[base_type]
    suffix = _suffix_of(name)
    if suffix in _TEXT_SUFFIXES:
        return _TEXT_SUFFIXES[suffix]
    if suffix in {"", ".txt"} and _HTML_START.match(head[:HEAD_BYTES]):
        return Format.HTML
    return Format.TEXT


def uncompressed_name(name: str) -> str:
    """Return the name of the file inside a .gz file."""
    return name.removesuffix(".gz")


def _suffix_of(name: str) -> str:
    return PurePosixPath(name).suffix.lower()
