"""Reads a file into a document in a worker process, because files may be hostile and libraries have bugs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import ParseError
from xml.parsers.expat import ExpatError
from zipfile import BadZipFile
from zlib import error as ZlibError  # noqa: N812 - the module's own name says nothing

from charset_normalizer import from_bytes

from pagantic_common.domain.chunks import MAX_METADATA_BYTES, parse_metadata
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from services.context.adapters.reading.archives import office_format, unpack_gzip
from services.context.adapters.reading.html import read_html
from services.context.adapters.reading.office import read_docx, read_pptx, read_xlsx
from services.context.adapters.reading.pdf import read_pdf
from services.context.core.document import Document
from services.context.core.reading.bounds import ReadingBounds, check_length, check_size
from services.context.core.reading.draft import ReadText
from services.context.core.reading.formats import HEAD_BYTES, Format, detect, uncompressed_name
from services.context.core.reading.markdown import read_markdown
from services.context.core.reading.plain_text import clean, decode_marked, is_text
from services.context.core.reading.records import read_json, read_json_lines, read_table

MAX_PROPERTY_CHARS: Final = 300
_DECLARED: Final = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_HEAD_BYTES: Final = 4096
_GUESSED_BYTES: Final = 1024 * 1024
TEXT_READERS: Final[Mapping[Format, Callable[[str, ReadingBounds], ReadText]]] = {
    Format.TEXT: lambda text, _bounds: ReadText(text),
    Format.MARKDOWN: lambda text, _bounds: read_markdown(text),
    Format.HTML: read_html,
    Format.JSON: read_json,
    Format.JSON_LINES: read_json_lines,
    Format.CSV: read_table,
}
_BINARY_READERS: Final[Mapping[Format, Callable[[bytes, ReadingBounds], ReadText]]] = {
    Format.PDF: read_pdf,
    Format.DOCX: read_docx,
    Format.PPTX: read_pptx,
    Format.XLSX: read_xlsx,
}
# The libraries for office formats raise these errors for files that violate the standards.
_DAMAGED: Final = (
    BadZipFile,
    ZlibError,
    ParseError,
    ExpatError,
    EOFError,
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
    AssertionError,
    RuntimeError,  # zipfile raises it for encrypted entries, and subclasses of it for nesting and unknown methods.
    OSError,
)


def read_file(path: str, source: str, media_type: str, metadata_json: str, bounds: ReadingBounds) -> Document:
    """Return the document of a file. Raises InvalidRequest with a message that suggests the next step."""
    with Path(path).open("rb") as file:
        data = file.read(bounds.max_bytes + 1)
    check_size(bounds, len(data))
    file_format = detect(source, media_type, data[:HEAD_BYTES])
    if file_format is Format.GZIP:
        data = unpack_gzip(data, bounds)
        source_name, media_type = uncompressed_name(source), ""
        file_format = detect(source_name, media_type, data[:HEAD_BYTES])
    if not data:
        raise InvalidRequest("the file is empty: leave it out, or fill it")
    read = _read(data, file_format, bounds)
    if not read[1].content.strip():
        raise InvalidRequest("the file has no text: if it shows pictures of text, recognize the text (OCR) first")
    check_length(bounds, len(read[1].content))
    return _document_of(source, metadata_json, *read)


def _read(data: bytes, found: Format, bounds: ReadingBounds) -> tuple[Format, ReadText]:
    if found is Format.GZIP:
        raise InvalidRequest("the gzip file has another one in it: unpack it first")
    if found is Format.ZIP:
        found = office_format(data)
    if found in TEXT_READERS:
        text = decode(data, is_html=found is Format.HTML)
        return found, TEXT_READERS[found](text, bounds)
    try:
        return found, _BINARY_READERS[found](data, bounds)
    except _DAMAGED:
        raise InvalidRequest(
            f"the {found.name} file is damaged or encrypted: in its program, save it again without a password"
        ) from None


def _document_of(source: str, metadata_json: str, found: Format, read: ReadText) -> Document:
    title = read.title
    if not title and read.outline.headings:
        title = read.outline.headings[0].title
    metadata_json = add_properties(metadata_json, {"title": title, "media_type": found.value})
    return Document(source, read.content, metadata_json, read.outline)


def decode(data: bytes, *, is_html: bool = False) -> str:
    """Return the text of a file's bytes.

    The encoding comes from the byte order mark, is UTF-8, comes from the HTML declaration, or is guessed from the
    letters, in this order. Raises InvalidRequest if the bytes are not text.
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


def add_properties(metadata_json: str, properties: Mapping[str, str]) -> str:
    """Add the non-empty properties to the metadata. The caller's values take precedence.

    A property that would make the metadata too large is left out. Raises InvalidRequest if the metadata is malformed.
    """
    metadata = parse_metadata("file", metadata_json)
    result = metadata_json
    for name, value in properties.items():
        if not value or name in metadata:
            continue
        metadata[name] = value[:MAX_PROPERTY_CHARS]
        extended = dump_json(metadata)
        if len(extended.encode()) > MAX_METADATA_BYTES:
            return result
        result = extended
    return result
