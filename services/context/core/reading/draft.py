"""Builds text block by block, with the outline of the resulting document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from services.context.core.outline import MAX_HEADING_CHARS, Heading, Outline
from services.context.core.reading.bounds import ReadingBounds, check_length
from services.context.core.reading.plain_text import clean

MAX_HEADINGS: Final = 4000  # Maximum per document. Later headings appear only in the text.
MAX_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class ReadText:
    """The content of a file: its text, the outline of its pages and sections, and its title, if any."""

    content: str
    outline: Outline = field(default_factory=Outline)
    title: str = ""


class TextDraft:
    """Collects blocks of text, separated by empty lines. Raises InvalidRequest if the text becomes too long."""

    def __init__(self, bounds: ReadingBounds) -> None:
        self._bounds = bounds
        self._parts: list[str] = []
        self._length = 0
        self._page_starts: list[int] = []
        self._headings: list[Heading] = []

    def start_page(self) -> None:
        """Start the next page."""
        self._separate()
        self._page_starts.append(self._length)

    def mark_heading(self, level: int, title: str) -> None:
        """Start a section at the next block without writing its title."""
        title = " ".join(clean(title).split())[:MAX_HEADING_CHARS]
        if title and len(self._headings) < MAX_HEADINGS:
            self._separate()
            self._headings.append(Heading(self._length, min(max(level, 1), MAX_LEVEL), title))

    def add_heading(self, level: int, title: str) -> None:
        """Start a section with its title in Markdown form."""
        title = " ".join(title.split())
        if title:
            self.mark_heading(level, title)
            self.add_block(f"{'#' * min(max(level, 1), MAX_LEVEL)} {title}")

    def add_block(self, text: str) -> None:
        """Add a paragraph or another block. Blank text adds nothing."""
        text = clean(text).rstrip()
        if not text.strip():
            return
        self._separate()
        self._append(text)

    def add_line(self, text: str) -> None:
        """Add a line below the previous block. A blank line adds nothing."""
        text = clean(text).rstrip()
        if not text:
            return
        if self._parts and self._parts[-1] != "\n\n":
            text = f"\n{text}"
        self._append(text)

    def finish(self, title: str = "") -> ReadText:
        """Return the text with its outline."""
        outline = Outline(tuple(self._page_starts), tuple(self._headings))
        return ReadText("".join(self._parts), outline, " ".join(clean(title).split()))

    def _separate(self) -> None:
        if self._parts and self._parts[-1] != "\n\n":
            self._append("\n\n")

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)
        check_length(self._bounds, self._length)
