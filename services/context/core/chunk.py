"""Chunks, which of them are kept, and how they are laid out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from pagantic_common.domain.chunks import Chunk

HEADING: Final = "Relevant context:"


def select_chunks(chunks: Iterable[Chunk], min_score: float | None, max_chunks: int) -> list[Chunk]:
    """Return chunks best first, ties in their order, without duplicates and without those below `min_score`.

    Of chunks with the same content, or the same source and id, the best is kept. `max_chunks` of 0 or less is all.
    """
    kept: list[Chunk] = []
    seen: set[object] = set()
    for chunk in sorted(chunks, key=lambda chunk: -chunk.score):
        if min_score is not None and chunk.score < min_score:
            continue
        keys = {hashlib.sha256(chunk.content.encode()).digest(), (chunk.source, chunk.id)}
        if seen.isdisjoint(keys):
            kept.append(chunk)
        seen |= keys
        if len(kept) == max_chunks:
            break
    return kept


def lay_out(chunks: Sequence[Chunk]) -> str:
    """Return the text of the context message: the heading, an empty line, and numbered chunks with their sources."""
    return "\n".join([f"{HEADING}\n", *(line_of(number, chunk) for number, chunk in enumerate(chunks, 1))])


def line_of(number: int, chunk: Chunk) -> str:
    """Return one chunk as it stands in the message."""
    return f"[{number}] ({chunk.source}): {chunk.content}"
