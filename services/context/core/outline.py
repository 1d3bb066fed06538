"""Records the offsets in a document's text at which its pages and sections start."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

from pagantic_common.domain.text.json_text import dump_json, parse_json

HEADING_SEPARATOR: Final = " > "
MAX_HEADING_CHARS: Final = 200  # maximum length of a section title


@dataclass(frozen=True, slots=True)
class Heading:
    """The start of a section: its offset in the text, its level (1 or higher) and its title."""

    start: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Outline:
    """The starts of pages and sections, each in ascending order. The first page is page 1."""

    page_starts: tuple[int, ...] = ()
    headings: tuple[Heading, ...] = ()

    def page_at(self, place: int) -> int:
        """Return the page that contains the character at `place`, or 0 if the document has no pages."""
        return bisect_right(self.page_starts, place)

    def section_at(self, place: int) -> tuple[int, ...]:
        """Return the indexes of the headings above an offset, starting with the outermost heading."""
        above: list[int] = []
        last = bisect_right(self.headings, place, key=lambda heading: heading.start)
        for index in range(last):
            while above and self.headings[above[-1]].level >= self.headings[index].level:
                above.pop()
            above.append(index)
        return tuple(above)

    def heading_at(self, place: int) -> str:
        """Return the titles of the sections that contain an offset, joined by " > "."""
        titles = (self.headings[index].title[:MAX_HEADING_CHARS] for index in self.section_at(place))
        return HEADING_SEPARATOR.join(titles)

    def to_json(self) -> str:
        """Encode the outline as a JSON object."""
        headings = [[heading.start, heading.level, heading.title] for heading in self.headings]
        return dump_json({"pages": list(self.page_starts), "headings": headings})

    @classmethod
    def from_json(cls, text: str) -> Outline:
        """Decode an outline. Missing fields become empty."""
        stored: dict[str, Any] = parse_json(text)
        headings = tuple(Heading(start, level, title) for start, level, title in stored.get("headings", ()))
        return cls(tuple(stored.get("pages", ())), headings)
