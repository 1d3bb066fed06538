"""Reads PDF files as text with page numbers, and bookmarks as headings."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import closing
from itertools import islice
from typing import Any, Final

from pypdfium2 import PdfDocument, PdfiumError
from pypdfium2.raw import FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY

from pagantic_common.domain.errors import InvalidRequest
from services.context.core.reading.bounds import ReadingBounds
from services.context.core.reading.draft import MAX_HEADINGS, ReadText, TextDraft

MAX_PAGES: Final = 20_000
# PDFium marks a hyphen at the end of a line with a code point that is not a character. It is removed with the line end.
_HYPHEN: Final = re.compile("[\x02\ufffe](?:\r?\n)?")


def read_pdf(data: bytes, bounds: ReadingBounds) -> ReadText:
    """Return the text of all pages. Raises InvalidRequest if the PDF cannot be opened or exceeds a limit."""
    try:
        document = PdfDocument(data)
    except PdfiumError as error:
        raise _cannot_open(error) from None
    with closing(document):
        if len(document) > MAX_PAGES:
            raise InvalidRequest(f"the PDF has {len(document)} pages, at most {MAX_PAGES} are allowed: split it")
        return _read_pages(document, bounds)


def _cannot_open(error: PdfiumError) -> InvalidRequest:
    if error.err_code in (FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY):
        return InvalidRequest("the PDF is protected by a password: save it without one")
    return InvalidRequest("the PDF is damaged or cut: open it in a viewer and save it again")


def _read_pages(document: PdfDocument, bounds: ReadingBounds) -> ReadText:
    draft = TextDraft(bounds)
    bookmarks = _bookmarks_by_page(document)
    for number in range(len(document)):
        draft.start_page()
        for level, title in bookmarks.get(number, ()):
            draft.mark_heading(level, title)
        draft.add_block(_text_of_page(document, number))
    return draft.finish(document.get_metadata_value("Title"))


def _text_of_page(document: PdfDocument, number: int) -> str:
    """Return the text of a page, or an empty string if the page is unreadable."""
    try:
        with closing(document[number]) as page, closing(page.get_textpage()) as text:
            return _HYPHEN.sub("", str(text.get_text_range()))
    except PdfiumError:
        return ""


def _bookmarks_by_page(document: PdfDocument) -> dict[int, list[tuple[int, str]]]:
    bookmarks: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for bookmark in islice(document.get_toc(), MAX_HEADINGS):
        target: Any = bookmark.get_dest()
        page = target.get_index() if target is not None else None
        if page is not None:
            bookmarks[page].append((bookmark.level + 1, bookmark.get_title()))
    return bookmarks
