"""Splits text into overlapping chunks that end with a paragraph, a line, a sentence or a word, if possible."""

from __future__ import annotations

import re

# From the best place for a cut to the worst; the cut is after the match.
_BREAKS = tuple(re.compile(pattern) for pattern in (r"\n[ \t]*\n\s*", r"\n", r"[.!?…。！？]['\")\]]*\s+", r"\s+"))  # noqa: RUF001


def split_spans(text: str, chunk_chars: int, overlap_chars: int) -> list[tuple[int, int]]:
    """Return spans that together cover the text, in order; none is empty or longer than `chunk_chars`.

    Consecutive spans share at most `overlap_chars`, which is at most a quarter of `chunk_chars`. Every span but the
    last has at least half of `chunk_chars`, so each span ends after the one before.
    """
    if not 0 <= overlap_chars * 4 <= chunk_chars or chunk_chars < 1:
        raise ValueError(f"overlap of {overlap_chars} characters is more than a quarter of {chunk_chars}")
    if not text:
        return []
    spans: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > chunk_chars:
        end = _find_cut(text, start, chunk_chars)
        spans.append((start, end))
        start = _find_start(text, end, overlap_chars)
    return [*spans, (start, len(text))]


def split_text(text: str, chunk_chars: int, overlap_chars: int) -> list[str]:
    """Return the chunks without surrounding white space; blank ones are left out."""
    pieces = (text[start:end].strip() for start, end in split_spans(text, chunk_chars, overlap_chars))
    return [piece for piece in pieces if piece]


def _find_cut(text: str, start: int, chunk_chars: int) -> int:
    earliest, latest = start + (chunk_chars + 1) // 2, start + chunk_chars
    for pattern in _BREAKS:
        ends = [match.end() for match in pattern.finditer(text, earliest, latest)]
        if ends:
            return ends[-1]
    return latest


def _find_start(text: str, end: int, overlap_chars: int) -> int:
    # The overlap begins with a whole word.
    space = re.compile(r"\s+").search(text, end - overlap_chars, end)
    if space is None:
        return end - overlap_chars
    return space.end()
