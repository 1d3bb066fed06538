"""Reads office files as text with headings: documents, slides and sheets. Pictures are left out."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final
from xml.etree import ElementTree as ET
from zipfile import ZipFile

from services.context.adapters.reading.html import read_html
from services.context.core.reading.bounds import ReadingBounds
from services.context.core.reading.draft import ReadText, TextDraft
from services.context.core.reading.records import write_rows

_DRAWING: Final = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDES: Final = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_ID: Final = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_TITLES: Final = frozenset({"title", "ctrTitle"})


def read_docx(data: bytes, bounds: ReadingBounds) -> ReadText:
    """Return the text of a document."""
    import mammoth  # noqa: PLC0415 - the service, which imports this module, reads no files itself

    without_pictures = mammoth.images.img_element(lambda _image: {})
    page = mammoth.convert_to_html(io.BytesIO(data), convert_image=without_pictures)
    return read_html(page.value, bounds)


def read_xlsx(data: bytes, bounds: ReadingBounds) -> ReadText:
    """Return the rows of all sheets. The name of a sheet is a heading, and its first row names the columns."""
    from openpyxl import load_workbook  # noqa: PLC0415 - as above

    draft = TextDraft(bounds)
    workbook = load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    for sheet in workbook.worksheets:
        sheet.reset_dimensions()  # A file may claim any number of columns.
        rows = filter(any, map(_cells_of, sheet.iter_rows(values_only=True)))
        first = next(rows, None)
        if first is not None:  # An empty sheet has no section.
            draft.add_heading(1, sheet.title)
            write_rows(draft, chain([first], rows))
    return draft.finish(workbook.properties.title or "")


def _cells_of(row: tuple[Any, ...]) -> list[str]:
    return ["" if value is None else str(value) for value in row]


def read_pptx(data: bytes, bounds: ReadingBounds) -> ReadText:
    """Return the text of all slides in order, each below its title."""
    draft = TextDraft(bounds)
    with ZipFile(io.BytesIO(data)) as archive:
        for number, name in enumerate(_slide_names(archive), 1):
            _write_slide(draft, number, ET.fromstring(archive.read(name)))  # noqa: S314 - expat is bounded
    return draft.finish()


def _slide_names(archive: ZipFile) -> Iterator[str]:
    relations = ET.fromstring(archive.read("ppt/_rels/presentation.xml.rels"))  # noqa: S314
    targets = {relation.get("Id"): relation.get("Target", "") for relation in relations}
    presentation = ET.fromstring(archive.read("ppt/presentation.xml"))  # noqa: S314
    for slide in presentation.iter(f"{_SLIDES}sldId"):
        target = targets[slide.get(_ID)]
        yield posixpath.normpath(posixpath.join("/ppt", target)).lstrip("/")


def _write_slide(draft: TextDraft, number: int, slide: ET.Element) -> None:
    shapes = [(_is_title(shape), list(_paragraphs_of(shape))) for shape in slide.iter(f"{_SLIDES}sp")]
    title = next((" ".join(paragraphs) for is_title, paragraphs in shapes if is_title and paragraphs), "")
    draft.add_heading(1, title or f"Slide {number}")
    for is_title, paragraphs in shapes:
        if not is_title:
            draft.add_block("\n".join(paragraphs))
    for table in slide.iter(f"{_DRAWING}tbl"):
        write_rows(draft, _rows_of(table))


def _rows_of(table: ET.Element) -> Iterator[list[str]]:
    for row in table.iter(f"{_DRAWING}tr"):
        yield [" ".join(_paragraphs_of(cell)) for cell in row.iter(f"{_DRAWING}tc")]


def _is_title(shape: ET.Element) -> bool:
    return any(place.get("type") in _TITLES for place in shape.iter(f"{_SLIDES}ph"))


def _paragraphs_of(part: ET.Element) -> Iterator[str]:
    for paragraph in part.iter(f"{_DRAWING}p"):
        text = "".join(run.text or "" for run in paragraph.iter(f"{_DRAWING}t"))
        if text.strip():
            yield text
