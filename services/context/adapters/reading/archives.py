"""Unpacks gzip files and checks the ZIP archives of office formats, within limits on the unpacked size."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from typing import Final
from zipfile import BadZipFile, ZipFile, ZipInfo

from pagantic_common.domain.errors import InvalidRequest
from services.context.core.reading.bounds import MIB, ReadingBounds, check_size
from services.context.core.reading.formats import SUPPORTED, Format

MAX_RATIO: Final = 200  # Maximum expansion ratio of content above 1 MiB. Text rarely compresses below 1 %.
MAX_ENTRIES: Final = 10_000
MAX_XML_BYTES: Final = 128 * MIB  # Maximum total size of the parts of an office file that are read.
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
_OFFICE_FORMATS: Final = (("word/", Format.DOCX), ("ppt/", Format.PPTX), ("xl/", Format.XLSX))


def unpack_gzip(data: bytes, bounds: ReadingBounds) -> bytes:
    """Return the content of all members of a gzip file. Raises InvalidRequest if the file is damaged or too large."""
    limit = min(bounds.max_bytes, max(MIB, MAX_RATIO * len(data)))
    content = bytearray()
    while data:
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            content += member.decompress(data, limit + 1 - len(content))
        except zlib.error:
            raise InvalidRequest("the gzip file is damaged: pack it again") from None
        if len(content) > limit:
            check_size(bounds, len(content))
            raise InvalidRequest(f"the gzip file unpacks to more than {MAX_RATIO} times its size: send it unpacked")
        if not member.eof:
            raise InvalidRequest("the gzip file is cut: pack it again")
        data = member.unused_data.lstrip(b"\0")
    return bytes(content)


def office_format(data: bytes) -> Format:
    """Return the office format of a ZIP archive. Raises InvalidRequest if it is not an office file or is too large."""
    try:
        with ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
    except (BadZipFile, ValueError, RuntimeError, EOFError):  # zipfile raises these errors for damaged files.
        raise InvalidRequest("the ZIP archive is damaged or cut: save the file again") from None
    _check_entries(entries)
    names = [entry.filename for entry in entries]
    if "[Content_Types].xml" in names:
        for folder, file_format in _OFFICE_FORMATS:
            if any(name.startswith(folder) for name in names):
                return file_format
    raise InvalidRequest(f"the file is a ZIP archive: unpack it first ({SUPPORTED} are read)")


def _check_entries(entries: Sequence[ZipInfo]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise InvalidRequest(f"the archive has {len(entries)} entries, at most {MAX_ENTRIES} are allowed: split it")
    size = sum(entry.file_size for entry in entries if entry.filename.endswith((".xml", ".rels")))
    if size > MAX_XML_BYTES:
        raise InvalidRequest(
            f"the archive's XML unpacks to {size} bytes, at most {MAX_XML_BYTES} are allowed: split the file"
        )
