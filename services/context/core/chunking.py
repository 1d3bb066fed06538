"""Splits text into overlapping chunks that end, where they can, with a paragraph, a line, a sentence or a word."""

from __future__ import annotations

import re

# From the best place to cut to the worst; a cut falls after the match.
_BREAKS = tuple(re.compile(pattern) for pattern in (r"\n[ \t]*\n\s*", r"\n", r"[.!?…。！？]['\")\]]*\s+", r"\s+"))  # noqa: RUF001


def split_spans(text: str, chunk_chars: int, overlap_chars: int) -> list[tuple[int, int]]:
    """Return spans that together cover the text in order; each is at most `chunk_chars` long and not empty.

    Consecutive spans share at most `overlap_chars`, which is at most a quarter of `chunk_chars`: a chunk is never
    shorter than half its limit, so each one goes on past the one before.
    """
    if not 0 <= overlap_chars * 4 <= chunk_chars or chunk_chars < 1:
        raise ValueError(f"overlap of {overlap_chars} characters is more than a quarter of {chunk_chars}")
    spans: list[tuple[int, int]] = []
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= chunk_chars else _find_cut(text, start, chunk_chars)
        spans.append((start, end))
        start = end if end == len(text) else _find_start(text, end, overlap_chars)
    return spans


def split_text(text: str, chunk_chars: int, overlap_chars: int) -> list[str]:
    """Return the chunks without surrounding white space; blank ones are left out."""
    pieces = (text[start:end].strip() for start, end in split_spans(text, chunk_chars, overlap_chars))
    return [piece for piece in pieces if piece]


def _find_cut(text: str, start: int, chunk_chars: int) -> int:
    least, most = start + (chunk_chars + 1) // 2, start + chunk_chars
    for pattern in _BREAKS:
        ends = [match.end() for match in pattern.finditer(text, least, most)]
        if ends:
            return ends[-1]
    return most


def _find_start(text: str, end: int, overlap_chars: int) -> int:
    # The overlap begins with a whole word.
    space = re.compile(r"\s+").search(text, end - overlap_chars, end)
    return space.end() if space else end - overlap_chars
