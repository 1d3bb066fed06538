"""Reads the outline of Markdown text, which is stored unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from markdown_it import MarkdownIt

from services.context.core.outline import MAX_HEADING_CHARS, Heading, Outline
from services.context.core.reading.draft import MAX_HEADINGS, ReadText

_FRONT_MATTER: Final = re.compile(r"---[ \t]*\n(?:.*\n)*?(?:---|\.\.\.)[ \t]*(?:\n|$)")
_LINE: Final = re.compile(r"[^\n]*\n?")
# A title keeps the words of links and pictures, and drops the markers of emphasis and code.
_LINK: Final = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_SIGNS: Final = re.compile(r"[*`]+")


def read_markdown(text: str) -> ReadText:
    """Return the text unchanged, with the offsets of its headings. The first heading is the title."""
    headings = tuple(_headings_of(text))
    title = ""
    if headings:
        title = headings[0].title
    return ReadText(text, Outline((), headings), title)


def _headings_of(text: str) -> Iterator[Heading]:
    body_start = 0
    if front_matter := _FRONT_MATTER.match(text):
        body_start = front_matter.end()
    starts = [body_start + line.start() for line in _LINE.finditer(text[body_start:])]
    parser = MarkdownIt("commonmark").disable("inline")
    tokens = parser.parse(text[body_start:])
    count = 0
    for opening, content in pairwise(tokens):
        title = _title_of(content.content)
        if opening.type != "heading_open" or opening.map is None or not title:
            continue
        yield Heading(starts[opening.map[0]], int(opening.tag.removeprefix("h")), title)
        count += 1
        if count == MAX_HEADINGS:
            return


def _title_of(markdown: str) -> str:
    words = _SIGNS.sub("", _LINK.sub(r"\1", markdown[: 4 * MAX_HEADING_CHARS]))
    return " ".join(words.split())[:MAX_HEADING_CHARS]
