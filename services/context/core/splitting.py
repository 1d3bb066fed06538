"""Splits documents along their structure into overlapping chunks, measured in tokens of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from services.context.core.document import Document

BLOCK_CHARS: Final = 20_000
MAX_WORD_CHARS: Final = 40  # A longer word counts one token per character, without the model.
# A CJK character is a word by itself, because CJK text does not separate words.
_WORD: Final = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document that becomes a chunk."""

    start: int
    end: int
    page: int
    heading: str


@dataclass(frozen=True, slots=True)
class Splitting:
    """The maximum token count of a chunk, and of its overlap with the previous chunk."""

    chunk_tokens: int
    overlap_tokens: int


def countable_words(texts: Iterable[str]) -> set[str]:
    """Return the distinct words of texts, which are runs of letters or single symbols, to count their tokens."""
    words: set[str] = set()
    for text in texts:
        words.update(_WORD.findall(text))
    return {word for word in words if len(word) <= MAX_WORD_CHARS}


def count_tokens(text: str, token_counts: Mapping[str, int]) -> int:
    """Return the sum of the token counts of a text's words. An uncounted word counts one token per character.

    A text has at most a few more tokens than its words.
    """
    return sum(token_counts.get(word, len(word)) for word in _WORD.findall(text))


def split(document: Document, splitting: Splitting, token_counts: Mapping[str, int]) -> list[Piece]:
    """Split a document into pieces in order. Pieces are stripped, not blank, and within the maximum token count.

    A character with more tokens than the maximum becomes a separate piece.
    """
    kind: type[TextSplitter | MarkdownSplitter] = TextSplitter
    if document.outline.headings:
        kind = MarkdownSplitter
    splitter = kind.from_callback(
        lambda part: count_tokens(part, token_counts), splitting.chunk_tokens, splitting.overlap_tokens
    )
    return [
        _piece_of(document, block_start + start, part)
        for block_start, block in _blocks_of(document.content)
        for start, part in splitter.chunk_indices(block)
        if part.strip()
    ]


def uncovered(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the start and end of each part of a text that is outside all spans and not only white space."""
    parts: list[tuple[int, int]] = []
    covered = 0
    for start, end in (*sorted(spans), (len(text), len(text))):
        if text[covered:start].strip():
            parts.append((covered, start))
        covered = max(covered, end)
    return parts


def _piece_of(document: Document, start: int, part: str) -> Piece:
    start += len(part) - len(part.lstrip())  # The splitter leaves white space around some parts.
    outline = document.outline
    return Piece(start, start + len(part.strip()), outline.page_at(start), outline.heading_at(start))


def _blocks_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield parts of a text with their offsets, because the splitter's time grows faster than linearly with the length.

    A part ends with a paragraph, a line or a word, if possible.
    """
    start = 0
    while len(text) - start > BLOCK_CHARS:
        earliest, latest = start + BLOCK_CHARS // 2, start + BLOCK_CHARS
        cuts = (text.rfind(mark, earliest, latest) + len(mark) for mark in ("\n\n", "\n", " "))
        end = next((cut for cut in cuts if cut > earliest), latest)
        yield start, text[start:end]
        start = end
    yield start, text[start:]
